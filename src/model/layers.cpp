// SPDX-License-Identifier: Apache-2.0
#include "model/layers.h"

#include <fmt/core.h>

#include <cmath>

#include "base/error.h"
#include "model/parameters.h"

namespace anabatic::model {

LayerBuilder::LayerBuilder(ir::GraphBuilder& builder, const ModelConfig& config)
    : builder_(builder), config_(config) {
  for (const Parameter& parameter : model::parameters(config)) {
    parameters_[parameter.name] = builder.state(
        parameter.name, tensor_type(DType::kFloat32, parameter.shape), ir::StateRole::kParameter);
    builder.graph().states.back().init = init_of(parameter, config);
  }
}

ir::ValueId LayerBuilder::parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  ANABATIC_CHECK(found != parameters_.end(), "[model] {} has no parameter {}", config_.model_type,
                 name);
  return found->second;
}

void LayerBuilder::tag(std::int64_t layer, std::string_view segment) {
  builder_.set_tag({.phase = ir::Phase::kForward,
                    .layer = static_cast<std::int32_t>(layer),
                    .segment = intern(segment)});
}

ir::ValueId LayerBuilder::norm(ir::ValueId x, const std::string& name) {
  return builder_.add1("rms_norm", {x, parameter(name + ".weight")},
                       {{"epsilon", config_.rms_norm_eps}}, name);
}

ir::ValueId LayerBuilder::linear(ir::ValueId x, const std::string& name) {
  std::vector<ir::ValueId> inputs{x, parameter(name + ".weight")};
  if (const auto bias = parameters_.find(name + ".bias"); bias != parameters_.end())
    inputs.push_back(bias->second);
  return builder_.add1("linear", std::move(inputs), {}, name);
}

ir::ValueId LayerBuilder::activation(ir::ValueId gate, ir::ValueId up, const std::string& name) {
  return builder_.add1("activation", {gate, up}, spec::to_attributes(config_.activation), name);
}

ir::ValueId LayerBuilder::cached(ir::ValueId rows, std::int64_t layer, const char* which,
                                 const LayerInputs& inputs) {
  const std::string name = layer_state(layer, fmt::format("attention.{}_cache", which));
  const std::int64_t width = config_.num_key_value_heads * config_.head_dim;
  const ir::ValueId before = builder_.state(
      name, tensor_type(DType::kFloat32, {inputs.cache_capacity, width}), ir::StateRole::kCache);
  const ir::ValueId after =
      builder_.add1("cache_write", {before, rows, inputs.cache_first}, {}, name + ".after");
  builder_.graph().find_state(intern(name))->after = after;
  return after;
}

ir::ValueId LayerBuilder::attention_block(ir::ValueId hidden, std::int64_t layer,
                                          const LayerInputs& inputs) {
  tag(layer, "attention");
  const auto name = [&](std::string_view rest) { return layer_state(layer, rest); };
  const ir::ValueId normed = norm(hidden, name("attention_norm"));
  ir::ValueId q = linear(normed, name("attention.q"));
  ir::ValueId k = linear(normed, name("attention.k"));
  ir::ValueId v = linear(normed, name("attention.v"));
  if (config_.qk_norm) {
    q = norm(q, name("attention.q_norm"));
    k = norm(k, name("attention.k_norm"));
  }
  const spec::Attributes rotation{{"head_dim", config_.head_dim}, {"inverse", false}};
  q = builder_.add1("rope", {q, inputs.rope_table}, rotation, name("attention.q_rope"));
  k = builder_.add1("rope", {k, inputs.rope_table}, rotation, name("attention.k_rope"));
  if (inputs.cache_first != ir::kNoValue) {
    k = cached(k, layer, "k", inputs);
    v = cached(v, layer, "v", inputs);
  }
  const bool has_window = config_.layer_has_window.at(static_cast<std::size_t>(layer));
  const std::vector<ir::ValueId> results =
      builder_.add("attention", {q, k, v, inputs.key_begin, inputs.key_end},
                   {{"num_heads", config_.num_attention_heads},
                    {"num_kv_heads", config_.num_key_value_heads},
                    {"scale", 1.0 / std::sqrt(static_cast<double>(config_.head_dim))},
                    {"window", has_window ? config_.sliding_window : std::int64_t{0}}});
  const ir::ValueId projected = linear(results[0], name("attention.o"));
  return builder_.add1("add", {hidden, projected}, {}, name("attention.residual"));
}

ir::ValueId LayerBuilder::mlp_block(ir::ValueId hidden, std::int64_t layer) {
  tag(layer, "mlp");
  const auto name = [&](std::string_view rest) { return layer_state(layer, rest); };
  const ir::ValueId normed = norm(hidden, name("mlp_norm"));
  const ir::ValueId gate = linear(normed, name("mlp.gate"));
  const ir::ValueId up = linear(normed, name("mlp.up"));
  const ir::ValueId inner = activation(gate, up, name("mlp.activation"));
  const ir::ValueId down = linear(inner, name("mlp.down"));
  return builder_.add1("add", {hidden, down}, {}, name("mlp.residual"));
}

ir::ValueId LayerBuilder::moe_block(ir::ValueId hidden, std::int64_t layer,
                                    const LayerInputs& inputs,
                                    std::vector<RouterOutputs>& routers) {
  const auto name = [&](std::string_view rest) { return layer_state(layer, rest); };
  tag(layer, "router");
  const ir::ValueId normed = norm(hidden, name("mlp_norm"));
  const ir::ValueId logits = linear(normed, name("router"));
  std::vector<ir::ValueId> router_inputs{logits};
  if (inputs.documents != ir::kNoValue) router_inputs.push_back(inputs.documents);
  const std::vector<ir::ValueId> routed =
      builder_.add("router", std::move(router_inputs),
                   {{"normalize", config_.norm_topk_prob}, {"top_k", config_.num_experts_per_tok}});
  const ir::ValueId weights = routed[0], experts = routed[1];
  routers.push_back({.layer = layer,
                     .logits = logits,
                     .probabilities = routed[2],
                     .experts = experts,
                     .counts = routed[3],
                     .probability_sums = routed[4]});

  tag(layer, "dispatch");
  const std::vector<ir::ValueId> sorted =
      builder_.add("route_sort", {experts}, {{"num_experts", config_.num_experts}});
  const ir::ValueId row_map = sorted[0], slots = sorted[1], offsets = sorted[2];
  const ir::ValueId rows =
      builder_.add1("permute", {normed, row_map}, {{"top_k", config_.num_experts_per_tok}},
                    name("experts.input"));

  tag(layer, "experts");
  const auto grouped = [&](ir::ValueId x, std::string_view which) {
    const std::string state = name(fmt::format("experts.{}", which));
    return builder_.add1("grouped_linear", {x, parameter(state + ".weight"), offsets}, {}, state);
  };
  const ir::ValueId gate = grouped(rows, "gate");
  const ir::ValueId up = grouped(rows, "up");
  const ir::ValueId inner = activation(gate, up, name("experts.activation"));
  const ir::ValueId down = grouped(inner, "down");

  tag(layer, "combine");
  const ir::ValueId combined =
      builder_.add1("unpermute", {down, weights, slots}, {}, name("experts.output"));
  return builder_.add1("add", {hidden, combined}, {}, name("experts.residual"));
}

ir::ValueId LayerBuilder::head(ir::ValueId hidden) {
  tag(-1, "head");
  const ir::ValueId normed = norm(hidden, "norm");
  const char* weight = config_.tie_word_embeddings ? "embedding.weight" : "head.weight";
  return builder_.add1("linear", {normed, parameter(weight)}, {}, "logits");
}

}  // namespace anabatic::model
