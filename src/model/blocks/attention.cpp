// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>

#include "model/blocks/blocks.h"
#include "model/blocks/dropout.h"
#include "spec/dropout.h"

namespace anabatic::model {

void add_attention_dropout(ModelBuilder& b, std::vector<ir::ValueId>& operands,
                           spec::Attributes& attributes) {
  const double rate = b.dropout_rates().attention;
  if (rate == 0) return;
  operands.push_back(dropout_draws(b.graph()));
  attributes[std::string(spec::kDropoutRate)] = rate;
  attributes[std::string(spec::kDropoutSite)] =
      state_name(b.layer(), "attention.probabilities.dropout");
}

void add_key_blocks(const LayerInputs& inputs, std::int64_t window,
                    std::vector<ir::ValueId>& operands, spec::Attributes& attributes) {
  if (inputs.block_offsets == ir::kNoValue) return;
  operands.push_back(inputs.block_offsets);
  operands.push_back(inputs.block_ids);
  attributes[std::string(spec::kBlockSize)] = inputs.block_size;
  const auto density = inputs.block_densities.find(window);
  attributes[std::string(spec::kBlockDensity)] =
      density == inputs.block_densities.end() ? 1.0 : density->second;
}

ir::ValueId add_to_cache(ModelBuilder& b, ir::ValueId rows, const char* key, std::int64_t width,
                         const LayerInputs& inputs) {
  const std::string name = state_name(b.layer(), key);
  const ir::ValueId before = b.graph().state(
      name, tensor_type(DType::kFloat32, {inputs.cache_capacity, width}), ir::StateRole::kCache);
  const ir::ValueId after =
      b.op("cache_write", {before, rows, inputs.cache_places}, {}, fmt::format("{}.after", key));
  b.graph().graph().find_state(intern(name))->after = after;
  return after;
}

namespace {

struct Qkv {
  ir::ValueId q = ir::kNoValue, k = ir::kNoValue, v = ir::kNoValue;
};

Qkv project(ModelBuilder& b, const Gqa& spec, ir::ValueId x) {
  HeadRows rotated;
  if (spec.rotates_pairs)
    rotated = {.rows = spec.head_dim, .rotated = spec.head_dim, .in_pairs = true};
  const auto linear = [&](const char* name, const FileView& file, std::int64_t num_heads) {
    return b.linear(x, {.name = name,
                        .file = file,
                        .out = num_heads * spec.head_dim,
                        .in = b.spec().hidden_size,
                        .bias = spec.qkv_bias});
  };
  Qkv rows;
  rows.q = linear("attention.q", {"self_attn.q_proj", rotated}, spec.num_heads);
  rows.k = linear("attention.k", {"self_attn.k_proj", rotated}, spec.num_kv_heads);
  rows.v = linear("attention.v", {"self_attn.v_proj"}, spec.num_kv_heads);
  return rows;
}

void normalise(ModelBuilder& b, const Gqa& spec, Qkv& rows) {
  const auto width = [&](std::int64_t num_heads) {
    return spec.qk_norm == QkNorm::kHead ? spec.head_dim : num_heads * spec.head_dim;
  };
  rows.q = b.norm(rows.q, {"attention.q_norm", {"self_attn.q_norm"}, width(spec.num_heads)});
  rows.k = b.norm(rows.k, {"attention.k_norm", {"self_attn.k_norm"}, width(spec.num_kv_heads)});
}

void clip(ModelBuilder& b, const Gqa& spec, Qkv& rows) {
  const spec::Attributes limit{{"limit", spec.clip_qkv}};
  rows.q = b.op("clamp", {rows.q}, limit, "attention.q_clip");
  rows.k = b.op("clamp", {rows.k}, limit, "attention.k_clip");
  rows.v = b.op("clamp", {rows.v}, limit, "attention.v_clip");
}

void rotate(ModelBuilder& b, const Gqa& spec, ir::ValueId table, Qkv& rows) {
  const spec::Attributes rotation{{"head_dim", spec.head_dim}, {"inverse", false}};
  rows.q = b.op("rope", {rows.q, table}, rotation, "attention.q_rope");
  rows.k = b.op("rope", {rows.k, table}, rotation, "attention.k_rope");
}

}  // namespace

ir::ValueId add_attention(ModelBuilder& b, const Gqa& spec, ir::ValueId x,
                          const LayerInputs& inputs) {
  Qkv rows = project(b, spec, x);
  const bool has_norms = spec.qk_norm != QkNorm::kNone;
  if (has_norms && !spec.norms_after_rope) normalise(b, spec, rows);
  if (spec.clip_qkv > 0) clip(b, spec, rows);
  if (b.spec().learned_positions == 0) rotate(b, spec, inputs.rope_table, rows);
  if (has_norms && spec.norms_after_rope) normalise(b, spec, rows);
  if (inputs.cache_places != ir::kNoValue) {
    const std::int64_t kv_width = spec.num_kv_heads * spec.head_dim;
    rows.k = add_to_cache(b, rows.k, "attention.k_cache", kv_width, inputs);
    rows.v = add_to_cache(b, rows.v, "attention.v_cache", kv_width, inputs);
  }
  b.count_attention(spec.num_heads, 2 * spec.head_dim, spec.window);
  const double scale =
      spec.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  std::vector<ir::ValueId> operands{rows.q, rows.k, rows.v, inputs.key_begin, inputs.key_end};
  if (spec.has_sinks)
    operands.push_back(b.parameter({.key = "attention.sinks",
                                    .file = {"self_attn.sinks"},
                                    .shape = {spec.num_heads},
                                    .init = b.normal()}));
  anabatic::spec::Attributes attributes{{"num_heads", spec.num_heads},
                                        {"num_kv_heads", spec.num_kv_heads},
                                        {"scale", scale},
                                        {"window", spec.window}};
  add_attention_dropout(b, operands, attributes);
  add_key_blocks(inputs, spec.window, operands, attributes);
  const auto [mixed] = b.ops<1>("attention", std::move(operands), std::move(attributes));
  return b.linear(mixed, {.name = "attention.o",
                          .file = {"self_attn.o_proj"},
                          .out = b.spec().hidden_size,
                          .in = spec.num_heads * spec.head_dim,
                          .bias = spec.output_bias,
                          .init = b.residual_normal()});
}

}  // namespace anabatic::model
