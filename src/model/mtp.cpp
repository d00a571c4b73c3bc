// SPDX-License-Identifier: Apache-2.0
#include "model/mtp.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/json_edit.h"

namespace anabatic::model {
namespace {

// The product of eh_proj [hidden, 2 · hidden] and both rows, one after the other.
ir::ValueId add_projection(ModelBuilder& b, ir::ValueId embedded, ir::ValueId hidden) {
  const std::int64_t width = b.spec().hidden_size;
  const auto part = [&](ir::ValueId x, std::string_view name, const char* norm_file) {
    const std::string of(name);
    const ir::ValueId normed =
        b.norm(x, {.name = of + "_norm", .file = {norm_file}, .width = width});
    return std::pair(normed, of + "_proj");
  };
  const auto linear = [&](const std::pair<ir::ValueId, std::string>& from) {
    return b.linear(from.first, {.name = from.second,
                                 .file = {.tensor = "eh_proj", .joins_columns = true},
                                 .out = width,
                                 .in = width});
  };
  const auto e = part(embedded, "mtp.embedding", "enorm"), h = part(hidden, "mtp.hidden", "hnorm");
  const ir::ValueId from_embedding = linear(e);
  return b.op("add", {from_embedding, linear(h)}, {}, "mtp.input");
}

// Files may hold copies of what the layers share with the model.
void declare_copies(ModelBuilder& b) {
  const ModelSpec& spec = b.spec();
  const auto copy = [&](const char* tensor, const char* parameter, std::int64_t num_elements) {
    b.repeat({.tensor = fmt::format("model.layers.{}.{}.weight", b.layer(), tensor),
              .parameter = parameter,
              .may_replace = false},
             num_elements);
  };
  copy("embed_tokens", "embedding.weight", 0);
  copy("shared_head.head", spec.head.is_tied ? "embedding.weight" : "head.weight",
       spec.vocab_size * spec.hidden_size);
}

}  // namespace

std::vector<ir::ValueId> add_mtp(ModelBuilder& b, const LayerInputs& inputs,
                                 const std::vector<MtpInputs>& of_layers, const ModelValues& model,
                                 std::vector<RouterOutputs>& routers) {
  const ModelSpec& spec = b.spec();
  std::vector<ir::ValueId> logits;
  ir::ValueId hidden = model.hidden;
  for (std::size_t i = 0; i < of_layers.size(); ++i) {
    b.begin(std::ssize(spec.layers) + static_cast<std::int64_t>(i), "mtp");
    LayerInputs of_layer = inputs;
    of_layer.documents = of_layers[i].documents;
    of_layer.rope_table = model.rope_table;
    const ir::ValueId embedded =
        b.dropout(add_embedding(b, model.embedding_weight, of_layers[i].tokens),
                  b.dropout_rates().embedding, "mtp.embedding.dropout");
    const ir::ValueId x = add_projection(b, embedded, hidden);
    hidden = add_layer(b, spec.mtp[i], x, of_layer, routers);
    b.begin("mtp");
    hidden = b.norm(hidden,
                    {.name = "mtp.norm", .file = {"shared_head.norm"}, .width = spec.hidden_size});
    declare_copies(b);
    logits.push_back(add_logits(b, hidden, model.head_weight));
  }
  return logits;
}

ir::ValueId add_mtp_loss(ModelBuilder& b, const BuildOptions& options, const LayerInputs& inputs,
                         const ModelValues& model, ir::ValueId objective) {
  ir::GraphBuilder& builder = b.graph();
  const auto rows = [&](const char* name, std::int64_t depth, DType dtype = DType::kInt32) {
    return builder.batch_input(mtp_input(name, depth), tensor_type(dtype, {options.num_tokens}));
  };
  const std::int64_t depths = std::ssize(b.spec().mtp);
  std::vector<MtpInputs> of_layers;
  for (std::int64_t depth = 1; depth <= depths; ++depth)
    of_layers.push_back(
        {.tokens = rows("mtp_tokens", depth), .documents = rows("mtp_documents", depth)});
  std::vector<RouterOutputs> routers;
  const std::vector<ir::ValueId> logits = add_mtp(b, inputs, of_layers, model, routers);
  b.begin(-1, "loss");
  ir::ValueId sum = ir::kNoValue;
  for (std::int64_t depth = 1; depth <= depths; ++depth) {
    std::vector<ir::ValueId> of_loss{logits[static_cast<std::size_t>(depth - 1)],
                                     rows("mtp_labels", depth)};
    of_loss.push_back(builder.step_input(mtp_input("inverse_mtp_labels", depth),
                                         tensor_type(DType::kFloat32, {})));
    if (options.with_weights) of_loss.push_back(rows("mtp_weights", depth, DType::kFloat32));
    const ir::ValueId loss = builder.add("cross_entropy", std::move(of_loss))[0];
    sum = sum == ir::kNoValue ? loss : builder.add1("add", {sum, loss});
  }
  const ir::ValueId mean =
      builder.add1("scale", {sum}, {{"factor", 1.0 / static_cast<double>(depths)}});
  builder.output(mean, "mtp_loss");
  for (const RouterOutputs& router : routers)
    builder.output(router.counts, fmt::format("expert_load.{}", router.layer));
  const ir::ValueId weighted = builder.add1("scale", {mean}, {{"factor", options.mtp_coef}});
  return builder.add1("add", {objective, weighted});
}

std::string mtp_input(std::string_view name, std::int64_t depth) {
  return fmt::format("{}.{}", name, depth);
}

namespace {

// The layer that a tensor belongs to, of config.mtp_layers; -1: none.
std::int64_t mtp_layer_of(const ModelConfig& config, std::string_view tensor) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!tensor.starts_with(kPrefix)) return -1;
  std::int64_t layer = -1;
  const char* const end = tensor.data() + tensor.size();
  const auto [stop, error] = std::from_chars(tensor.data() + kPrefix.size(), end, layer);
  const std::int64_t first = std::ssize(config.spec.layers);
  const bool is_number = error == std::errc{} && stop != end && *stop == '.';
  return is_number && layer >= first && layer < first + std::ssize(config.mtp_layers) ? layer : -1;
}

}  // namespace

bool holds_mtp(const ModelConfig& config, const io::SafetensorsDirectory& files) {
  return std::any_of(files.entries().begin(), files.entries().end(),
                     [&](const auto& entry) { return mtp_layer_of(config, entry.first) >= 0; });
}

bool holds_mtp(const ModelConfig& config, const std::filesystem::path& directory) {
  if (config.mtp_layers.empty()) return false;
  std::error_code ignored;
  if (!std::filesystem::exists(directory / "model.safetensors", ignored) &&
      !std::filesystem::exists(directory / "model.safetensors.index.json", ignored))
    return false;
  return holds_mtp(config, io::SafetensorsDirectory::open(directory));
}

void take_mtp(ModelConfig& config, bool are_trained) {
  config.spec.mtp = config.mtp_layers;
  config.counts = count(declare(config.spec, are_trained));
}

std::string without_mtp(const std::string& config) {
  constexpr const char *kName = "num_nextn_predict_layers", *kOtherName = "num_mtp_layers";
  const Json json = parse_json(config);
  const bool has_other = json.contains(kOtherName);
  std::string text = has_other ? with_member(config, kOtherName, "0") : config;
  if (json.contains(kName) || !has_other) text = with_member(text, kName, "0");
  return text;
}

std::int64_t left_out_layer(const ModelConfig& config, std::string_view tensor) {
  return config.spec.mtp.empty() ? mtp_layer_of(config, tensor) : -1;
}

}  // namespace anabatic::model
