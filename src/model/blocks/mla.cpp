// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention. DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1.
#include "model/blocks/blocks.h"

namespace anabatic::model {
namespace {

// Files have the columns of a head that rotate after the others.
HeadRows rotated_heads(const Mla& spec, std::int64_t nope_dim) {
  return {
      .rows = nope_dim + spec.rope_dim, .rotated = spec.rope_dim, .in_pairs = spec.rotates_pairs};
}

ir::ValueId add_queries(ModelBuilder& b, const Mla& spec, ir::ValueId x) {
  const std::int64_t hidden = b.spec().hidden_size,
                     width = spec.num_heads * (spec.nope_dim + spec.rope_dim);
  const HeadRows heads = rotated_heads(spec, spec.nope_dim);
  if (spec.q_rank == 0)
    return b.linear(
        x,
        {.name = "attention.q", .file = {"self_attn.q_proj", heads}, .out = width, .in = hidden});
  const ir::ValueId latent = b.linear(x, {.name = "attention.q_a",
                                          .file = {"self_attn.q_a_proj"},
                                          .out = spec.q_rank,
                                          .in = hidden,
                                          .bias = spec.bias});
  const ir::ValueId normed = b.norm(latent, {.name = "attention.q_a_norm",
                                             .file = {"self_attn.q_a_layernorm"},
                                             .width = spec.q_rank,
                                             .epsilon = spec.latent_epsilon});
  return b.linear(normed, {.name = "attention.q_b",
                           .file = {"self_attn.q_b_proj", heads},
                           .out = width,
                           .in = spec.q_rank});
}

}  // namespace

ir::ValueId add_attention(ModelBuilder& b, const Mla& spec, ir::ValueId x,
                          const LayerInputs& inputs) {
  const std::int64_t hidden = b.spec().hidden_size, heads = spec.num_heads,
                     head_dim = spec.rope_dim + spec.nope_dim;
  ir::ValueId q = add_queries(b, spec, x);
  ir::ValueId latent = b.linear(x, {.name = "attention.kv_a",
                                    .file = {"self_attn.kv_a_proj_with_mqa"},
                                    .out = spec.kv_rank,
                                    .in = hidden,
                                    .bias = spec.bias});
  ir::ValueId k_rope =
      b.linear(x, {.name = "attention.k_rope",
                   .file = {"self_attn.kv_a_proj_with_mqa", rotated_heads(spec, 0)},
                   .out = spec.rope_dim,
                   .in = hidden,
                   .bias = spec.bias});
  latent = b.norm(latent, {.name = "attention.kv_a_norm",
                           .file = {"self_attn.kv_a_layernorm"},
                           .width = spec.kv_rank,
                           .epsilon = spec.latent_epsilon});
  q = b.op("rope", {q, inputs.rope_table}, {{"head_dim", head_dim}, {"inverse", false}},
           "attention.q_rotated");
  k_rope = b.op("rope", {k_rope, inputs.rope_table},
                {{"head_dim", spec.rope_dim}, {"inverse", false}}, "attention.k_rotated");
  // A cache keeps what all heads share: keys and values are products of it.
  if (inputs.cache_places != ir::kNoValue) {
    latent = add_to_cache(b, latent, "attention.latent_cache", spec.kv_rank, inputs);
    k_rope = add_to_cache(b, k_rope, "attention.k_rope_cache", spec.rope_dim, inputs);
  }
  // Files have the rows of keys and of values in turn, head by head.
  const auto heads_of_latent = [&](const char* name, std::int64_t width) {
    return b.linear(latent, {.name = name,
                             .file = {.tensor = "self_attn.kv_b_proj", .rows_in_turn = width},
                             .out = heads * width,
                             .in = spec.kv_rank});
  };
  const ir::ValueId k_nope = heads_of_latent("attention.k_b", spec.nope_dim);
  const ir::ValueId v = heads_of_latent("attention.v_b", spec.v_dim);
  const ir::ValueId k = b.op("join_heads", {k_rope, k_nope}, {{"num_heads", heads}}, "attention.k");
  b.count_attention(heads, head_dim + spec.v_dim, 0);
  std::vector<ir::ValueId> operands{q, k, v, inputs.key_begin, inputs.key_end};
  anabatic::spec::Attributes attributes{{"num_heads", heads},
                                        {"num_kv_heads", heads},
                                        {"scale", spec.scale},
                                        {"window", std::int64_t{0}}};
  add_attention_dropout(b, operands, attributes);
  add_key_blocks(inputs, 0, operands, attributes);
  const auto [mixed] = b.ops<1>("attention", std::move(operands), std::move(attributes));
  return b.linear(mixed, {.name = "attention.o",
                          .file = {"self_attn.o_proj"},
                          .out = hidden,
                          .in = heads * spec.v_dim,
                          .bias = spec.bias,
                          .init = b.residual_normal()});
}

}  // namespace anabatic::model
