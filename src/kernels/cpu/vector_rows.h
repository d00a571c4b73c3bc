// SPDX-License-Identifier: Apache-2.0
// Kernels that are compiled once per instruction set, each in the file of its family, and their
// workspaces, which do not depend on it.
#pragma once
#include "kernels/cpu/call.h"

#define ANABATIC_VECTOR_ROWS                             \
  /* attention.cpp, attention_gradient.cpp */            \
  void attention(const Arguments& args);                 \
  void attention_gradient(const Arguments& args);        \
  /* elementwise.cpp */                                  \
  void add(const Arguments& args);                       \
  void cast(const Arguments& args);                      \
  void dequantize(const Arguments& args);                \
  void quantize(const Arguments& args);                  \
  void scale(const Arguments& args);                     \
  void activation(const Arguments& args);                \
  void activation_gradient(const Arguments& args);       \
  /* embedding.cpp */                                    \
  void embedding_weight_gradient(const Arguments& args); \
  /* loss.cpp */                                         \
  void cross_entropy(const Arguments& args);             \
  void cross_entropy_gradient(const Arguments& args);    \
  void router_z_loss(const Arguments& args);             \
  void router_z_loss_gradient(const Arguments& args);    \
  /* moe.cpp */                                          \
  void permute_gradient(const Arguments& args);          \
  void unpermute(const Arguments& args);                 \
  void unpermute_gradient(const Arguments& args);        \
  /* norm.cpp */                                         \
  void add_rms_norm(const Arguments& args);              \
  void rms_norm(const Arguments& args);                  \
  void rms_norm_input_gradient(const Arguments& args);   \
  void rms_norm_weight_gradient(const Arguments& args);  \
  void sum_rows(const Arguments& args);                  \
  /* optimizer.cpp */                                    \
  void optimizer_step(const Arguments& args);            \
  void sum_squares(const Arguments& args);               \
  /* pack.cpp */                                         \
  void pack(const Arguments& args);                      \
  /* rope.cpp */                                         \
  void rope(const Arguments& args);                      \
  void rope_pair(const Arguments& args);                 \
  /* router.cpp */                                       \
  void router(const Arguments& args);                    \
  void router_gradient(const Arguments& args);

namespace anabatic::kernels::cpu {

namespace avx512_bf16 {
void attention(const Arguments& args);
void attention_gradient(const Arguments& args);
void dequantize(const Arguments& args);
}  // namespace avx512_bf16
namespace avx512 {
ANABATIC_VECTOR_ROWS
}
namespace avx2 {
ANABATIC_VECTOR_ROWS
}
namespace portable {
ANABATIC_VECTOR_ROWS
}

// attention_buffers.cpp; pairs: of avx512_bf16
std::int64_t attention_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_gradient_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_pairs_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_gradient_pairs_workspace_bytes(const spec::Problem& problem);

// workspace.cpp
std::int64_t row_doubles_workspace_bytes(const spec::Problem& problem);
std::int64_t column_partials_workspace_bytes(const spec::Problem& problem);
std::int64_t embedding_gradient_workspace_bytes(const spec::Problem& problem);
std::int64_t paired_weight_workspace_bytes(const spec::Problem& problem);
std::int64_t rope_pair_workspace_bytes(const spec::Problem& problem);
std::int64_t router_workspace_bytes(const spec::Problem& problem);
std::int64_t sum_squares_workspace_bytes(const spec::Problem& problem);
// One byte if the results should bypass the caches, none otherwise.
std::vector<std::byte> prepare_stream(const spec::Problem& problem);

}  // namespace anabatic::kernels::cpu

#undef ANABATIC_VECTOR_ROWS
