// SPDX-License-Identifier: Apache-2.0
#include "train/convert/trained_export.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "model/compressed_tensors.h"
#include "model/stored_tensor.h"

namespace anabatic::train {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_gguf_format(GridFormat format) {
  return format == GridFormat::kQ8_0 || format == GridFormat::kQ4_0 || format == GridFormat::kMxfp4;
}

// The name of a grid's type in GGUF files.
std::string gguf_name(const WeightGrid& grid) {
  std::string name = to_string(grid);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

std::string formats_of(const WeightGrid& grid) {
  std::vector<std::string> formats;
  if (is_gguf_format(grid.format)) formats.emplace_back("gguf");
  if (model::is_packed_format(grid.format)) formats.emplace_back("compressed-tensors");
  if (grid.format == GridFormat::kMxfp4) formats.emplace_back("mxfp4");
  return fmt::format("{}", fmt::join(formats, " or "));
}

void require_begun(const TrainedGrid& trained, const std::string& source) {
  if (!trained.has_begun)
    log_warning(
        "[convert] {}: quantization.quant_delay was not over: products have not read the values of "
        "{} that are written",
        source, to_string(trained.grid));
}

[[noreturn]] void refuse(std::string_view format, const TrainedGrid& trained,
                         const std::string& source) {
  throw InvalidArgument(fmt::format(
      "[convert] --format: expected {} for {}, which was trained on the grid {}, got {}",
      formats_of(trained.grid), source, to_string(trained.grid), format));
}

}  // namespace

std::optional<TrainedGrid> grid_of_conversion(const std::filesystem::path& source,
                                              const std::string& adapter,
                                              const std::string& grid_of) {
  if (grid_of.empty()) return find_trained_grid(adapter.empty() ? source.string() : adapter);
  std::optional<TrainedGrid> trained = find_trained_grid(grid_of);
  ANABATIC_REQUIRE(
      trained.has_value() &&
          !std::filesystem::exists(std::filesystem::path(grid_of) / "config.json"),
      "[convert] --grid_of: expected an adapter that was trained with quantization, got {}",
      grid_of);
  return trained;
}

void require_weights(const model::WeightMap& map, const TrainedGrid& trained,
                     const std::string& adapter) {
  std::set<std::string, std::less<>> known;
  for (const model::FileTensor& tensor : map.tensors)
    for (const model::WeightPiece& piece : tensor.pieces) known.insert(piece.state);
  std::vector<std::string> others;
  for (const auto& [name, error] : trained.parameters)
    if (!known.contains(name)) others.push_back(name);
  ANABATIC_REQUIRE(others.empty(),
                   "[convert] {}: expected the model under this adapter, got one without these "
                   "weights of its grid: {}",
                   adapter, fmt::join(others, ", "));
}

void require_directory_form(const std::optional<TrainedGrid>& trained, bool packs_weights,
                            bool is_mxfp4, const std::string& source) {
  if (!packs_weights && !(is_mxfp4 && trained)) return;
  ANABATIC_REQUIRE(trained.has_value(),
                   "[convert] --format compressed-tensors: expected a checkpoint of a run with "
                   "quantization, got {}",
                   source);
  if (packs_weights && !model::is_packed_format(trained->grid.format))
    refuse("compressed-tensors", *trained, source);
  if (is_mxfp4 && trained->grid.format != GridFormat::kMxfp4) refuse("mxfp4", *trained, source);
  require_begun(*trained, source);
}

void pack_trained(model::WeightMap& map, const TrainedGrid& trained) {
  std::vector<std::string> others;
  for (model::FileTensor& tensor : map.tensors) {
    const auto count = std::ranges::count_if(tensor.pieces, [&](const model::WeightPiece& piece) {
      return trained.parameters.contains(piece.state);
    });
    if (count == 0) continue;
    if (count == std::ssize(tensor.pieces) && tensor.shape.size() == 2 && !tensor.is_transposed &&
        tensor.name.ends_with(kWeight))
      tensor.grid = trained.grid;
    else
      others.push_back(tensor.name);
  }
  if (!others.empty())
    throw Unsupported(
        fmt::format("[convert] --format compressed-tensors: expected a matrix [out, in] for each "
                    "trained weight, got other tensors: {}",
                    fmt::join(others, ", ")));
}

void require_trained_blocks(const model::WeightMap& map, const TrainedGrid& trained) {
  std::set<std::string> others;
  for (const model::FileTensor& tensor : map.tensors)
    for (const model::WeightPiece& piece : tensor.pieces)
      if (model::names_blocks(tensor.name) != trained.parameters.contains(piece.state))
        others.insert(piece.state);
  ANABATIC_REQUIRE(others.empty(),
                   "[convert] --format mxfp4: expected quantization.units to be experts, as the "
                   "format has it; these differ: {}",
                   fmt::join(others, ", "));
}

std::vector<std::string> unpacked_modules(const model::WeightMap& map) {
  std::vector<std::string> modules;
  for (const model::FileTensor& tensor : map.tensors)
    if (!tensor.grid && tensor.shape.size() == 2 && tensor.name.ends_with(kWeight))
      modules.push_back(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
  return modules;
}

model::GgufParameterType gguf_type_of(const std::optional<TrainedGrid>& trained,
                                      const io::BlockType* type, std::optional<DType> dtype,
                                      const std::string& source) {
  if (!trained) return {};
  if (!is_gguf_format(trained->grid.format)) refuse("gguf", *trained, source);
  const io::BlockType* const own = io::find_block_type(gguf_name(trained->grid));
  ANABATIC_REQUIRE(type == nullptr || type == own || dtype,
                   "[convert] --dtype: expected {} or a dtype of other tensors for {}, which was "
                   "trained on this grid, got {}",
                   to_string(trained->grid), source, type->name);
  require_begun(*trained, source);
  model::GgufParameterType of_trained{.type = own};
  for (const auto& [name, error] : trained->parameters) of_trained.parameters.insert(name);
  return of_trained;
}

}  // namespace anabatic::train
