// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/router_losses.h"
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

void add_losses(LayerBuilder& layers, ir::GraphBuilder& builder, const ModelConfig& config,
                const BuildOptions& options, ir::ValueId logits, ir::ValueId documents,
                const std::vector<RouterOutputs>& routers) {
  layers.tag(-1, "loss");
  const ir::ValueId labels =
      builder.batch_input("labels", tensor_type(DType::kInt32, {options.num_tokens}));
  const ir::ValueId scale = builder.step_input("inverse_tokens", tensor_type(DType::kFloat32, {}));
  const ir::ValueId loss = builder.add("cross_entropy", {logits, labels, scale})[0];
  builder.output(loss, "loss");
  builder.graph().objective =
      routers.empty() ? loss
                      : add_router_losses(builder, config, options, loss, documents, routers);
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
  const bool has_experts = std::find(config.layer_is_moe.begin(), config.layer_is_moe.end(),
                                     true) != config.layer_is_moe.end();
  if (options.with_loss && has_experts) inputs.documents = batch("documents");
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
                 ? layers.moe_block(hidden, layer, inputs, routers)
                 : layers.mlp_block(hidden, layer);
  }
  const ir::ValueId logits = layers.head(hidden);
  if (options.with_loss)
    add_losses(layers, builder, config, options, logits, inputs.documents, routers);
  if (options.with_logits) builder.output(logits, "logits");
  return graph;
}

}  // namespace anabatic::model
