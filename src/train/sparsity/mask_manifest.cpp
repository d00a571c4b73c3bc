// SPDX-License-Identifier: Apache-2.0
#include "train/sparsity/mask_manifest.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/log.h"
#include "base/text.h"
#include "model/weights.h"
#include "train/convert/stored_model.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestMaskManifest = std::int64_t{1} << 28;

OrderedJson to_json(const SparseParameter& parameter) {
  return {{"pattern", std::string(to_string(parameter.pattern))},
          {"transposable", parameter.is_transposable},
          {"density", parameter.density}};
}

std::int64_t count_zeros(const model::FileTensor& tensor, const model::StateReader& read) {
  std::int64_t zeros = 0;
  model::read_in_file_order(tensor, read, [&](std::span<const float> values) {
    zeros += std::ranges::count(values, 0.0f);
  });
  return zeros;
}

// A file tensor with sparse parameters, which may have several densities in it; null where it has
// none.
OrderedJson tensor_json(const model::FileTensor& tensor, const SparseParameters& parameters,
                        const model::StateReader& read) {
  std::set<std::string> names;
  std::set<std::string_view> patterns;
  double present = 0, elements = 0;
  for (const model::WeightPiece& piece : tensor.pieces) {
    const auto found = parameters.find(piece.state);
    if (found == parameters.end()) continue;
    names.insert(piece.state);
    patterns.insert(to_string(found->second.pattern));
    present += found->second.density * static_cast<double>(piece.count);
    elements += static_cast<double>(piece.count);
  }
  if (names.empty()) return nullptr;
  return {{"tensor", tensor.name},
          {"parameters", names},
          {"pattern", patterns.size() == 1 ? *patterns.begin() : "several"},
          {"density", elements > 0 ? present / elements : 1},
          {"elements", tensor.num_elements()},
          {"zeros", count_zeros(tensor, read)}};
}

}  // namespace

SparseParameters sparse_parameters(ModelSession& session) {
  SparseParameters parameters;
  for (const ir::State& mask : session.masks()) {
    const TensorView view = session.store().find(mask.name);
    const std::span<const std::uint8_t> elements(
        view.as<const std::uint8_t>(), static_cast<std::size_t>(view.type->num_elements()));
    const spec::SparseUnits& entry =
        session.run().sparsity.weights.at(static_cast<std::size_t>(mask.entry));
    parameters[std::string(text(mask.owner))] = {
        .pattern = *mask.pattern,
        .is_transposable = entry.is_transposable,
        .density = static_cast<double>(std::ranges::count(elements, std::uint8_t{1})) /
                   static_cast<double>(std::max<std::size_t>(elements.size(), 1))};
  }
  return parameters;
}

fs::path mask_manifest_path(const fs::path& model) {
  std::error_code ignored;
  return fs::is_directory(model, ignored) ? model / kMaskManifestFile
                                          : fs::path(model.string() + ".sparsity.json");
}

void write_mask_manifest(const fs::path& file, const SparseParameters& parameters,
                         const fs::path& model) {
  const LogScope quiet({});  // whoever wrote the model told everything
  const StoredModel written(model);
  OrderedJson json{{"parameters", OrderedJson::object()}, {"tensors", OrderedJson::array()}};
  std::set<std::string_view> known;
  for (const model::FileTensor& tensor : written.map().tensors) {
    for (const model::WeightPiece& piece : tensor.pieces) known.insert(piece.state);
    OrderedJson of_tensor = tensor_json(tensor, parameters, written.reader());
    if (!of_tensor.is_null()) json["tensors"].push_back(std::move(of_tensor));
  }
  for (const auto& [name, parameter] : parameters)
    if (known.contains(name)) json["parameters"][name] = to_json(parameter);
  write_file_atomically(file, dump_json(json, 1) + "\n");
}

std::optional<SparseParameters> find_sparse_parameters(const fs::path& model) {
  const fs::path file = mask_manifest_path(model);
  if (!fs::exists(file)) return std::nullopt;
  const std::string place = fmt::format("[sparsity] {}", file.string());
  const Json json = parse_json_object(read_file(file, kLargestMaskManifest), place);
  SparseParameters parameters;
  const JsonNode top(json, place);
  const JsonNode listed = top.at("parameters");
  for (const auto& [name, node] : listed.members()) {
    const JsonNode pattern = node.at("pattern");
    const auto known = spec::sparsity_pattern_from_string(pattern.as_string());
    if (!known) pattern.refuse("block32, block16, 2:4 or unstructured");
    parameters[name] = {.pattern = *known,
                        .is_transposable = node.bool_or("transposable", false),
                        .density = node.at("density").as_number(0, 1)};
  }
  return parameters;
}

}  // namespace anabatic::train
