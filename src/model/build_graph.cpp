// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/mtp.h"
#include "model/router_losses.h"
#include "ops/table.h"

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
  ANABATIC_REQUIRE(options.with_loss || options.with_logits || options.with_log_probabilities,
                   "[model] expected a graph with loss or logits, got neither");
  ANABATIC_REQUIRE(!options.with_loss || !options.with_log_probabilities,
                   "[model] expected with_loss false for a graph with log_probabilities, got true");
  ANABATIC_REQUIRE(!options.preference || (options.with_loss && options.mtp_coef == 0),
                   "[model] expected with_loss and no mtp_coef for a loss of preferences");
  ANABATIC_REQUIRE(options.mtp_coef == 0 || (options.with_loss && options.keeps_mtp),
                   "[model] expected with_loss and keeps_mtp for a loss of multi-token prediction");
  ANABATIC_REQUIRE(
      options.with_loss || (options.dropout.residual == 0 && options.dropout.embedding == 0 &&
                            options.dropout.attention == 0),
      "[model] expected with_loss for a graph with dropout, which is of training");
}

// Adds the outputs `loss` and `preference_sums`. Returns the sum of cross-entropies, of negative
// weight too, that has the gradient of the loss: what each weighs is known after a first pass.
ir::ValueId add_preference_loss(ir::GraphBuilder& builder, const BuildOptions& options,
                                ir::ValueId logits, ir::ValueId labels) {
  const Preference& preference = *options.preference;
  const TensorType of_rows = tensor_type(DType::kFloat32, {options.num_tokens}),
                   scalar = tensor_type(DType::kFloat32, {});
  const ir::ValueId reference = builder.batch_input("reference", of_rows),
                    completions = builder.batch_input(
                        "completions", tensor_type(DType::kInt32, {options.num_tokens})),
                    inverse_pairs = builder.step_input("inverse_pairs", scalar);
  const ir::ValueId log_probabilities = builder.add("label_log_probabilities", {logits, labels})[0];
  const std::vector<ir::ValueId> of_pairs =
      builder.add("preference_loss", {log_probabilities, reference, completions, inverse_pairs},
                  {{"loss", preference.loss},
                   {"beta", preference.beta},
                   {"label_smoothing", preference.label_smoothing},
                   {"length_normalized", preference.length_normalized}});
  builder.output(of_pairs[0], "loss");
  builder.output(of_pairs[2], "preference_sums");
  builder.output(log_probabilities, "log_probabilities");
  const ir::ValueId one = builder.add1("fill", {}, {{"type", to_string(scalar)}, {"value", 1.0}});
  return builder.add("cross_entropy", {logits, labels, one, of_pairs[1]})[0];
}

ir::ValueId add_token_loss(ir::GraphBuilder& builder, const BuildOptions& options,
                           ir::ValueId logits, ir::ValueId labels) {
  std::vector<ir::ValueId> of_loss{logits, labels};
  const ir::ValueId weights =
      options.with_weights
          ? builder.batch_input("weights", tensor_type(DType::kFloat32, {options.num_tokens}))
          : ir::kNoValue;
  of_loss.push_back(builder.step_input("inverse_tokens", tensor_type(DType::kFloat32, {})));
  if (options.with_weights) of_loss.push_back(weights);
  const ir::ValueId loss = builder.add("cross_entropy", std::move(of_loss))[0];
  builder.output(loss, "loss");
  return loss;
}

void add_losses(ModelBuilder& layers, const BuildOptions& options, const LayerInputs& inputs,
                const ModelValues& model, const std::vector<RouterOutputs>& routers) {
  layers.begin(-1, "loss");
  ir::GraphBuilder& builder = layers.graph();
  const ir::ValueId labels =
      builder.batch_input("labels", tensor_type(DType::kInt32, {options.num_tokens}));
  const ir::ValueId loss = options.preference
                               ? add_preference_loss(builder, options, model.logits, labels)
                               : add_token_loss(builder, options, model.logits, labels);
  ir::ValueId objective =
      routers.empty() ? loss : add_router_losses(builder, options, loss, inputs.documents, routers);
  if (options.mtp_coef != 0) objective = add_mtp_loss(layers, options, inputs, model, objective);
  builder.graph().objective = objective;
}

void add_log_probabilities(ModelBuilder& layers, const BuildOptions& options, ir::ValueId logits) {
  layers.begin(-1, "head");
  ir::GraphBuilder& builder = layers.graph();
  const ir::ValueId labels =
      builder.batch_input("labels", tensor_type(DType::kInt32, {options.num_tokens}));
  const std::vector<ir::ValueId> of_rows = builder.add("label_log_probabilities", {logits, labels});
  builder.output(of_rows[0], "log_probabilities");
  builder.output(of_rows[1], "margins");
}

// What no op reads gets no gradient.
void freeze_mtp(ir::Graph& graph, const ModelSpec& spec) {
  const std::size_t num_used = declare(spec, false).parameters.size();
  for (std::size_t i = num_used; i < graph.states.size(); ++i) graph.states[i].is_trainable = false;
}

// The lists of key blocks, and what each window leaves of the pairs of a document.
void add_block_inputs(ir::GraphBuilder& builder, const ModelConfig& config,
                      const BuildOptions& options, LayerInputs& inputs) {
  const std::int64_t all = std::max(options.num_tokens, options.cache_capacity),
                     longest = options.longest_document > 0 ? options.longest_document : all;
  const spec::BlockLists lists = key_block_lists(*config.key_blocks, longest);
  ANABATIC_REQUIRE(options.longest_document <= lists.blocks * lists.size,
                   "[model] expected documents of at most {} tokens, for which the mask of "
                   "attention.blocks.file has blocks, got data.sequence_length {}",
                   lists.blocks * lists.size, options.longest_document);
  inputs.block_size = lists.size;
  inputs.block_offsets = builder.batch_input(
      spec::kBlockOffsets, tensor_type(DType::kInt32, {lists.groups, lists.blocks + 1}));
  inputs.block_ids =
      builder.batch_input(spec::kBlockIds, tensor_type(DType::kInt32, {std::ssize(lists.ids)}));
  const std::int64_t places = std::min(longest, lists.blocks * lists.size);
  for (const auto& [window, width] : config.counts.attention_widths)
    inputs.block_densities[window] = lists.density(places, window);
}

LayerInputs add_inputs(ir::GraphBuilder& builder, const ModelConfig& config,
                       const BuildOptions& options) {
  const auto batch = [&](const char* name) {
    return builder.batch_input(name, tensor_type(DType::kInt32, {options.num_tokens}));
  };
  LayerInputs inputs;
  inputs.tokens = batch("tokens");
  inputs.positions = batch("positions");
  inputs.key_begin = batch("key_begin");
  inputs.key_end = batch("key_end");
  if (options.cache_capacity > 0) {
    inputs.cache_places = batch("cache_places");
    inputs.cache_capacity = options.cache_capacity;
  }
  if (config.key_blocks) add_block_inputs(builder, config, options, inputs);
  if (options.with_loss && first_moe(config.spec) != nullptr) inputs.documents = batch("documents");
  return inputs;
}

}  // namespace

spec::BlockLists key_block_lists(const spec::BlockPattern& pattern, std::int64_t longest_document) {
  const std::int64_t most = pattern.mask ? pattern.mask->blocks * pattern.size : longest_document;
  return spec::make_block_lists(pattern, std::min(longest_document, most));
}

ir::Graph build_graph(const ModelConfig& config, const BuildOptions& options) {
  check_options(options);
  ir::Graph graph;
  graph.name = config.model_type;
  ir::GraphBuilder builder(graph, ops::find_op);
  ModelBuilder layers(config.spec, builder, options.keeps_mtp, options.dropout);
  if (options.keeps_mtp && options.mtp_coef == 0) freeze_mtp(graph, config.spec);
  const LayerInputs inputs = add_inputs(builder, config, options);
  std::vector<RouterOutputs> routers;
  const ModelValues model = add_model(layers, inputs, routers);
  if (options.with_loss) add_losses(layers, options, inputs, model, routers);
  if (options.with_log_probabilities) add_log_probabilities(layers, options, model.logits);
  if (options.with_logits) builder.output(model.logits, "logits");
  return graph;
}

}  // namespace anabatic::model
