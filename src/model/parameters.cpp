// SPDX-License-Identifier: Apache-2.0
#include "model/parameters.h"

#include <fmt/core.h>

namespace anabatic::model {
namespace {

struct Shape {
  std::int64_t sizes[3] = {};
  std::size_t ndim = 0;

  std::int64_t num_elements() const {
    std::int64_t count = 1;
    for (std::size_t i = 0; i < ndim; ++i) count *= sizes[i];
    return count;
  }
};

Shape shape_of(std::int64_t a) { return {{a}, 1}; }
Shape shape_of(std::int64_t a, std::int64_t b) { return {{a, b}, 2}; }
Shape shape_of(std::int64_t a, std::int64_t b, std::int64_t c) { return {{a, b, c}, 3}; }

// `visit(name within the layer, shape, kind)`. Allocates nothing.
template <class Visit>
void visit_layer(const ModelConfig& config, bool is_moe, Visit&& visit) {
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size,
                     head = config.head_dim, experts = config.num_experts,
                     expert_inner = config.moe_intermediate_size;
  const std::int64_t q_width = config.num_attention_heads * head,
                     kv_width = config.num_key_value_heads * head;
  const auto linear = [&](const char* weight, const char* bias, std::int64_t out, std::int64_t in,
                          bool has_bias) {
    visit(weight, shape_of(out, in), ParameterKind::kMatrix);
    if (has_bias) visit(bias, shape_of(out), ParameterKind::kBias);
  };
  visit("attention_norm.weight", shape_of(hidden), ParameterKind::kNorm);
  linear("attention.q.weight", "attention.q.bias", q_width, hidden, config.attention_bias);
  linear("attention.k.weight", "attention.k.bias", kv_width, hidden, config.attention_bias);
  linear("attention.v.weight", "attention.v.bias", kv_width, hidden, config.attention_bias);
  if (config.qk_norm) {
    visit("attention.q_norm.weight", shape_of(head), ParameterKind::kNorm);
    visit("attention.k_norm.weight", shape_of(head), ParameterKind::kNorm);
  }
  linear("attention.o.weight", "attention.o.bias", hidden, q_width, config.attention_output_bias);
  visit("mlp_norm.weight", shape_of(hidden), ParameterKind::kNorm);
  if (is_moe) {
    const ParameterKind kind = ParameterKind::kExperts;
    visit("router.weight", shape_of(experts, hidden), ParameterKind::kRouter);
    visit("experts.gate.weight", shape_of(experts, expert_inner, hidden), kind);
    visit("experts.up.weight", shape_of(experts, expert_inner, hidden), kind);
    visit("experts.down.weight", shape_of(experts, hidden, expert_inner), kind);
  } else {
    linear("mlp.gate.weight", "mlp.gate.bias", inner, hidden, config.mlp_bias);
    linear("mlp.up.weight", "mlp.up.bias", inner, hidden, config.mlp_bias);
    linear("mlp.down.weight", "mlp.down.bias", hidden, inner, config.mlp_bias);
  }
}

}  // namespace

std::int64_t Parameter::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

spec::Init init_of(const Parameter& parameter, const ModelConfig& config) {
  using enum spec::Init::Rule;
  if (parameter.kind == ParameterKind::kNorm) return {.rule = kOnes};
  if (parameter.kind == ParameterKind::kBias) return {.rule = kZeros};
  const bool is_padded = parameter.kind == ParameterKind::kEmbedding && config.pad_token_id >= 0;
  return {.rule = kNormal,
          .deviation = config.initializer_range,
          .zero_row = is_padded ? config.pad_token_id : -1};
}

std::string layer_state(std::int64_t layer, std::string_view rest) {
  return fmt::format("layers.{}.{}", layer, rest);
}

std::vector<Parameter> layer_parameters(const ModelConfig& config, std::int64_t layer) {
  std::vector<Parameter> list;
  visit_layer(
      config, config.layer_is_moe.at(static_cast<std::size_t>(layer)),
      [&](const char* rest, const Shape& shape, ParameterKind kind) {
        list.push_back(
            {layer_state(layer, rest), {shape.sizes, shape.sizes + shape.ndim}, kind, layer});
      });
  return list;
}

std::vector<Parameter> parameters(const ModelConfig& config) {
  std::vector<Parameter> list;
  list.push_back(
      {"embedding.weight", {config.vocab_size, config.hidden_size}, ParameterKind::kEmbedding});
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    for (Parameter& parameter : layer_parameters(config, layer))
      list.push_back(std::move(parameter));
  list.push_back({"norm.weight", {config.hidden_size}, ParameterKind::kNorm});
  if (!config.tie_word_embeddings)
    list.push_back(
        {"head.weight", {config.vocab_size, config.hidden_size}, ParameterKind::kMatrix});
  return list;
}

void visit_sizes(const ModelConfig& config,
                 const std::function<void(ParameterKind kind, std::int64_t size)>& visit) {
  const std::int64_t table = config.vocab_size * config.hidden_size;
  visit(ParameterKind::kEmbedding, table);
  for (const bool is_moe : config.layer_is_moe)
    visit_layer(config, is_moe, [&](const char*, const Shape& shape, ParameterKind kind) {
      visit(kind, shape.num_elements());
    });
  visit(ParameterKind::kNorm, config.hidden_size);
  if (!config.tie_word_embeddings) visit(ParameterKind::kMatrix, table);
}

}  // namespace anabatic::model
