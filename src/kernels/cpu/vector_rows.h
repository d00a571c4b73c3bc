// SPDX-License-Identifier: Apache-2.0
// Kernels that are compiled once per instruction set, each in the file of its family, and their
// workspaces, which do not depend on it.
#pragma once
#include "kernels/cpu/call.h"

namespace anabatic::kernels::cpu {

// The functions of an op, one an instruction set.
struct VectorKernel {
  std::string_view op;
  void (*avx512)(const Arguments&), (*avx2)(const Arguments&), (*portable)(const Arguments&);
};

// Declares the functions of an op, and names them together: variants::add().
#define ANABATIC_VECTOR_KERNEL(op)                                                                 \
  namespace avx512 {                                                                               \
  void op(const Arguments& args);                                                                  \
  }                                                                                                \
  namespace avx2 {                                                                                 \
  void op(const Arguments& args);                                                                  \
  }                                                                                                \
  namespace portable {                                                                             \
  void op(const Arguments& args);                                                                  \
  }                                                                                                \
  namespace variants {                                                                             \
  constexpr VectorKernel op() { return {#op, cpu::avx512::op, cpu::avx2::op, cpu::portable::op}; } \
  }

// attention.cpp, attention_gradient.cpp
ANABATIC_VECTOR_KERNEL(attention)
ANABATIC_VECTOR_KERNEL(attention_gradient)
// elementwise/dropout.cpp
ANABATIC_VECTOR_KERNEL(dropout)
// elementwise/fake_quantize_tokens.cpp
ANABATIC_VECTOR_KERNEL(fake_quantize_tokens)
// elementwise.cpp
ANABATIC_VECTOR_KERNEL(add)
ANABATIC_VECTOR_KERNEL(cast)
ANABATIC_VECTOR_KERNEL(clamp)
ANABATIC_VECTOR_KERNEL(clamp_gradient)
ANABATIC_VECTOR_KERNEL(dequantize)
ANABATIC_VECTOR_KERNEL(quantize)
ANABATIC_VECTOR_KERNEL(scale)
ANABATIC_VECTOR_KERNEL(scale_by)
ANABATIC_VECTOR_KERNEL(activation)
ANABATIC_VECTOR_KERNEL(activation_gradient)
// embedding.cpp
ANABATIC_VECTOR_KERNEL(embedding_weight_gradient)
// fake_quantize.cpp
ANABATIC_VECTOR_KERNEL(fake_quantize)
// gate_rows.cpp
ANABATIC_VECTOR_KERNEL(gate_rows)
ANABATIC_VECTOR_KERNEL(gate_rows_gradient)
// join_heads.cpp
ANABATIC_VECTOR_KERNEL(join_heads)
ANABATIC_VECTOR_KERNEL(join_heads_gradient)
// norm/layer_norm.cpp
ANABATIC_VECTOR_KERNEL(layer_norm)
ANABATIC_VECTOR_KERNEL(layer_norm_input_gradient)
ANABATIC_VECTOR_KERNEL(layer_norm_weight_gradient)
// loss.cpp
ANABATIC_VECTOR_KERNEL(cross_entropy)
ANABATIC_VECTOR_KERNEL(cross_entropy_gradient)
ANABATIC_VECTOR_KERNEL(label_log_probabilities)
ANABATIC_VECTOR_KERNEL(router_z_loss)
ANABATIC_VECTOR_KERNEL(router_z_loss_gradient)
// moe.cpp
ANABATIC_VECTOR_KERNEL(expert_bias)
ANABATIC_VECTOR_KERNEL(expert_bias_router_gradient)
ANABATIC_VECTOR_KERNEL(expert_bias_weight_gradient)
ANABATIC_VECTOR_KERNEL(permute_gradient)
ANABATIC_VECTOR_KERNEL(unpermute)
ANABATIC_VECTOR_KERNEL(unpermute_gradient)
// norm/norm.cpp
ANABATIC_VECTOR_KERNEL(add_rms_norm)
ANABATIC_VECTOR_KERNEL(rms_norm)
ANABATIC_VECTOR_KERNEL(rms_norm_input_gradient)
ANABATIC_VECTOR_KERNEL(rms_norm_weight_gradient)
ANABATIC_VECTOR_KERNEL(sinks_gradient)
ANABATIC_VECTOR_KERNEL(sum_rows)
// norm/norm_statistics.cpp
ANABATIC_VECTOR_KERNEL(add_norm_statistics)
ANABATIC_VECTOR_KERNEL(norm_statistics)
// optimizer.cpp
ANABATIC_VECTOR_KERNEL(optimizer_step)
ANABATIC_VECTOR_KERNEL(sum_squares)
ANABATIC_VECTOR_KERNEL(sum_leaves)
ANABATIC_VECTOR_KERNEL(sum_squares_of_parts)
// pack.cpp
ANABATIC_VECTOR_KERNEL(pack)
// rope.cpp
ANABATIC_VECTOR_KERNEL(rope)
ANABATIC_VECTOR_KERNEL(rope_pair)
// router.cpp
ANABATIC_VECTOR_KERNEL(router)
ANABATIC_VECTOR_KERNEL(router_gradient)
// sparse/csr.cpp
ANABATIC_VECTOR_KERNEL(sparse_csr)
// sparse/pack_sparse.cpp
ANABATIC_VECTOR_KERNEL(pack_sparse)

#undef ANABATIC_VECTOR_KERNEL

namespace avx512_bf16 {
void attention(const Arguments& args);
void attention_gradient(const Arguments& args);
void dequantize(const Arguments& args);
}  // namespace avx512_bf16

// attention_buffers.cpp; pairs: of avx512_bf16
std::int64_t attention_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_gradient_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_pairs_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_gradient_pairs_workspace_bytes(const spec::Problem& problem);

// workspace.cpp
std::int64_t row_doubles_workspace_bytes(const spec::Problem& problem);
std::int64_t column_partials_workspace_bytes(const spec::Problem& problem);
// Columns that a task of expert_bias_weight_gradient sums, a multiple of all vectors.
inline constexpr std::int64_t kExpertBiasStrip = 64;
std::int64_t expert_bias_workspace_bytes(const spec::Problem& problem);
std::int64_t embedding_gradient_workspace_bytes(const spec::Problem& problem);
std::int64_t paired_weight_workspace_bytes(const spec::Problem& problem);
std::int64_t paired_weight_and_bias_workspace_bytes(const spec::Problem& problem);
std::int64_t rope_pair_workspace_bytes(const spec::Problem& problem);
std::int64_t router_workspace_bytes(const spec::Problem& problem);
std::int64_t sum_squares_workspace_bytes(const spec::Problem& problem);
// One byte if the results should bypass the caches, none otherwise.
std::vector<std::byte> prepare_stream(const spec::Problem& problem);

}  // namespace anabatic::kernels::cpu
