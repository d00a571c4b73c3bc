// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "base/error.h"
#include "model/layers.h"
#include "model/model.h"
#include "ops/table.h"
#include "spec/rope.h"

namespace anabatic::model {
namespace {

void check_options(const BuildOptions& options) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
  ANABATIC_REQUIRE(options.num_tokens > 0 && options.num_tokens < kMostTokens,
                   "[model] expected 1 to 2^31 - 1 tokens a micro-batch, got {}",
                   options.num_tokens);
  ANABATIC_REQUIRE(options.cache_capacity == 0 || options.cache_capacity >= options.num_tokens,
                   "[model] expected a cache of at least {} rows, got {}", options.num_tokens,
                   options.cache_capacity);
  ANABATIC_REQUIRE(options.cache_capacity == 0 || !options.with_loss,
                   "[model] expected with_loss false for a graph with caches, got true");
  ANABATIC_REQUIRE(options.with_loss || options.with_logits,
                   "[model] expected a graph with loss or logits, got neither");
}

// objective + factor * extra.
ir::ValueId add_scaled(ir::GraphBuilder& builder, ir::ValueId objective, ir::ValueId extra,
                       double factor) {
  const ir::ValueId scaled = builder.add1("scale", {extra}, {{"factor", factor}});
  return builder.add1("add", {objective, scaled});
}

ir::ValueId balance_loss(ir::GraphBuilder& builder, const ModelConfig& config,
                         const BuildOptions& options, const std::vector<RouterOutputs>& routers) {
  std::vector<ir::ValueId> inputs;
  for (const RouterOutputs& router : routers) {
    inputs.push_back(router.counts);
    inputs.push_back(router.probability_sums);
  }
  return builder.add1("load_balancing_loss", std::move(inputs),
                      {{"num_tokens", options.num_tokens}, {"top_k", config.num_experts_per_tok}});
}

// The mean over tokens and layers, as if all layers' logits stood in one table.
ir::ValueId mean_z_loss(ir::GraphBuilder& builder, const std::vector<RouterOutputs>& routers) {
  ir::ValueId sum = ir::kNoValue;
  for (const RouterOutputs& router : routers) {
    const ir::ValueId loss = builder.add1("router_z_loss", {router.logits});
    sum = sum == ir::kNoValue ? loss : builder.add1("add", {sum, loss});
  }
  return builder.add1("scale", {sum}, {{"factor", 1.0 / static_cast<double>(routers.size())}});
}

void add_losses(LayerBuilder& layers, ir::GraphBuilder& builder, const ModelConfig& config,
                const BuildOptions& options, ir::ValueId logits,
                const std::vector<RouterOutputs>& routers) {
  layers.tag(-1, "loss");
  const ir::ValueId labels =
      builder.batch_input("labels", tensor_type(DType::kInt32, {options.num_tokens}));
  const ir::ValueId scale = builder.step_input("inverse_tokens", tensor_type(DType::kFloat32, {}));
  const ir::ValueId loss = builder.add("cross_entropy", {logits, labels, scale})[0];
  builder.output(loss, "loss");
  ir::ValueId objective = loss;
  if (!routers.empty()) {
    const ir::ValueId aux = balance_loss(builder, config, options, routers);
    builder.output(aux, "aux_loss");
    if (options.aux_loss_coef != 0)
      objective =
          add_scaled(builder, objective, aux, options.aux_loss_coef * options.aux_loss_scale);
    if (options.z_loss_coef != 0) {
      const ir::ValueId z_loss = mean_z_loss(builder, routers);
      builder.output(z_loss, "z_loss");
      objective =
          add_scaled(builder, objective, z_loss, options.z_loss_coef * options.aux_loss_scale);
    }
  }
  for (const RouterOutputs& router : routers)
    builder.output(router.counts, fmt::format("expert_load.{}", router.layer));
  builder.graph().objective = objective;
}

}  // namespace

ir::Graph build_graph(const ModelConfig& config, const BuildOptions& options) {
  check_options(options);
  ir::Graph graph;
  graph.name = config.model_type;
  ir::GraphBuilder builder(graph, ops::find_op);
  LayerBuilder layers(builder, config);
  const auto batch = [&](const char* name) {
    return builder.batch_input(name, tensor_type(DType::kInt32, {options.num_tokens}));
  };
  const ir::ValueId tokens = batch("tokens"), positions = batch("positions");
  LayerInputs inputs{.key_begin = batch("key_begin"), .key_end = batch("key_end")};
  if (options.cache_capacity > 0) {
    inputs.cache_first = builder.batch_input("cache_first", tensor_type(DType::kInt32, {1}));
    inputs.cache_capacity = options.cache_capacity;
  }
  layers.tag(-1, "embedding");
  spec::Attributes padding;
  if (config.pad_token_id >= 0) padding["padding"] = config.pad_token_id;
  ir::ValueId hidden = builder.add1("embedding", {layers.parameter("embedding.weight"), tokens},
                                    std::move(padding), "embedding.output");
  inputs.rope_table =
      builder.add1("rope_table", {positions}, spec::to_attributes(config.rope), "rope_table");

  std::vector<RouterOutputs> routers;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    hidden = layers.attention_block(hidden, layer, inputs);
    hidden = config.layer_is_moe.at(static_cast<std::size_t>(layer))
                 ? layers.moe_block(hidden, layer, routers)
                 : layers.mlp_block(hidden, layer);
  }
  const ir::ValueId logits = layers.head(hidden);
  if (options.with_loss) add_losses(layers, builder, config, options, logits, routers);
  if (options.with_logits) builder.output(logits, "logits");
  return graph;
}

}  // namespace anabatic::model
