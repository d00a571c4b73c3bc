// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>

#include "model/blocks/blocks.h"

namespace anabatic::model {
ir::ValueId add_to_cache(ModelBuilder& b, ir::ValueId rows, const char* key, std::int64_t width,
                         const LayerInputs& inputs) {
  const std::string name = state_name(b.layer(), key);
  const ir::ValueId before = b.graph().state(
      name, tensor_type(DType::kFloat32, {inputs.cache_capacity, width}), ir::StateRole::kCache);
  const ir::ValueId after =
      b.op("cache_write", {before, rows, inputs.cache_first}, {}, fmt::format("{}.after", key));
  b.graph().graph().find_state(intern(name))->after = after;
  return after;
}

ir::ValueId add_attention(ModelBuilder& b, const Gqa& spec, ir::ValueId x,
                          const LayerInputs& inputs) {
  const std::int64_t hidden = b.spec().hidden_size, q_width = spec.num_heads * spec.head_dim,
                     kv_width = spec.num_kv_heads * spec.head_dim;
  const auto project = [&](const char* name, const char* file, std::int64_t out) {
    return b.linear(
        x, {.name = name, .file = {file}, .out = out, .in = hidden, .bias = spec.qkv_bias});
  };
  ir::ValueId q = project("attention.q", "self_attn.q_proj", q_width);
  ir::ValueId k = project("attention.k", "self_attn.k_proj", kv_width);
  ir::ValueId v = project("attention.v", "self_attn.v_proj", kv_width);
  if (spec.qk_norm) {
    q = b.norm(q, {"attention.q_norm", {"self_attn.q_norm"}, spec.head_dim});
    k = b.norm(k, {"attention.k_norm", {"self_attn.k_norm"}, spec.head_dim});
  }
  const spec::Attributes rotation{{"head_dim", spec.head_dim}, {"inverse", false}};
  q = b.op("rope", {q, inputs.rope_table}, rotation, "attention.q_rope");
  k = b.op("rope", {k, inputs.rope_table}, rotation, "attention.k_rope");
  if (inputs.cache_first != ir::kNoValue) {
    k = add_to_cache(b, k, "attention.k_cache", kv_width, inputs);
    v = add_to_cache(b, v, "attention.v_cache", kv_width, inputs);
  }
  b.count_attention(spec.num_heads, 2 * spec.head_dim, spec.window);
  const auto [mixed] = b.ops<1>("attention", {q, k, v, inputs.key_begin, inputs.key_end},
                                {{"num_heads", spec.num_heads},
                                 {"num_kv_heads", spec.num_kv_heads},
                                 {"scale", 1.0 / std::sqrt(static_cast<double>(spec.head_dim))},
                                 {"window", spec.window}});
  return b.linear(mixed, {.name = "attention.o",
                          .file = {"self_attn.o_proj"},
                          .out = hidden,
                          .in = q_width,
                          .bias = spec.output_bias});
}

}  // namespace anabatic::model
