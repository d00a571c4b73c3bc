// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

constexpr std::string_view kExpert = "{}";

DType export_dtype(const ModelConfig& config) {
  if (config.dtype == "bfloat16") return DType::kBFloat16;
  if (config.dtype == "float16") return DType::kFloat16;
  return DType::kFloat32;
}

const FileView& view_of(const Parameter& parameter, const Spelling& names) {
  const auto renamed = std::find_if(names.begin(), names.end(), [&](const Renamed& name) {
    return name.parameter == parameter.key;
  });
  return renamed == names.end() ? parameter.file : renamed->file;
}

// A piece and its first element in the file tensor.
struct Placed {
  std::int64_t at = 0;
  WeightPiece piece;
};

// In the order of the file tensor. Pieces that continue one another become one.
std::vector<WeightPiece> in_file_order(std::vector<Placed> placed, const std::string& tensor) {
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.at < b.at; });
  std::vector<WeightPiece> pieces;
  std::int64_t end = 0;
  for (Placed& next : placed) {
    ANABATIC_CHECK(next.at == end, "[weights] {}: expected element {} next, got {}", tensor, end,
                   next.at);
    end += next.piece.count;
    if (!pieces.empty() && pieces.back().state == next.piece.state &&
        pieces.back().offset + pieces.back().count == next.piece.offset)
      pieces.back().count += next.piece.count;
    else
      pieces.push_back(std::move(next.piece));
  }
  return pieces;
}

// Every element of every parameter has one place in the files.
void require_all_elements(const WeightMap& map, const Declarations& declared) {
  std::map<std::string_view, std::vector<const WeightPiece*>> pieces;
  for (const FileTensor& tensor : map.tensors)
    for (const WeightPiece& piece : tensor.pieces) pieces[piece.state].push_back(&piece);
  for (const Parameter& parameter : declared.parameters) {
    const std::string name = parameter.name();
    std::vector<const WeightPiece*>& own = pieces[name];
    std::sort(own.begin(), own.end(),
              [](const WeightPiece* a, const WeightPiece* b) { return a->offset < b->offset; });
    std::int64_t end = 0;
    for (const WeightPiece* piece : own) {
      ANABATIC_CHECK(piece->offset == end, "[weights] {}: expected element {} next, got {}", name,
                     end, piece->offset);
      end += piece->count;
    }
    ANABATIC_CHECK(end == parameter.num_elements(), "[weights] {}: {} of {} elements", name, end,
                   parameter.num_elements());
  }
}

class MapBuilder {
 public:
  MapBuilder(const Spelling& names, DType dtype) : names_(names), dtype_(dtype) {}

  // `parameters` are those of all experts of one layer, or a single other one.
  void add(std::span<const Parameter* const> parameters) {
    const Parameter& first = *parameters.front();
    if (first.layer != layer_) places_.clear();
    layer_ = first.layer;
    const std::int64_t experts = first.is_per_expert() ? first.shape[0] : 1;
    for (std::int64_t expert = 0; expert < experts; ++expert)
      for (const Parameter* parameter : parameters)
        add_matrix(*parameter, expert, parameter->num_elements() / experts);
  }

  WeightMap take() {
    for (std::size_t i = 0; i < map_.tensors.size(); ++i)
      map_.tensors[i].pieces = in_file_order(std::move(placed_[i]), map_.tensors[i].name);
    return std::move(map_);
  }

 private:
  // The matrix of one expert, or the whole parameter where there are no experts.
  void add_matrix(const Parameter& parameter, std::int64_t expert, std::int64_t count) {
    const FileView& view = view_of(parameter, names_);
    std::vector<std::int64_t> shape = parameter.shape;
    if (has_tensor_per_expert(parameter, names_)) shape.erase(shape.begin());
    const std::size_t rows = shape.size() - std::min<std::size_t>(2, shape.size());
    std::string name = file_tensor(parameter, names_, expert);
    const auto [place, is_new] = places_.try_emplace(name, map_.tensors.size());
    if (is_new) {
      map_.tensors.push_back({std::move(name), dtype_, shape, {}});
      placed_.emplace_back();
    }
    FileTensor& tensor = map_.tensors[place->second];
    if (!is_new && expert == 0) tensor.shape[rows] += shape[rows];
    add_pieces(placed_[place->second], view, {parameter.name(), expert * count, count},
               shape[rows]);
  }

  // Rows follow those that are there, or go where their order says.
  static void add_pieces(std::vector<Placed>& placed, const FileView& view,
                         const WeightPiece& matrix, std::int64_t num_rows) {
    if (!view.order) {
      const std::int64_t end = placed.empty() ? 0 : placed.back().at + placed.back().piece.count;
      placed.push_back({end, matrix});
      return;
    }
    const RowOrder& order = *view.order;
    const std::int64_t width = matrix.count / num_rows;
    const auto group_rows = static_cast<std::int64_t>(order.rows.size());
    ANABATIC_CHECK(num_rows % group_rows == 0, "[weights] {}: {} rows in groups of {}",
                   matrix.state, num_rows, group_rows);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const std::int64_t to = order.first + row / group_rows * order.group +
                              order.rows[static_cast<std::size_t>(row % group_rows)];
      placed.push_back({to * width, {matrix.state, matrix.offset + row * width, width}});
    }
  }

  const Spelling& names_;
  DType dtype_;
  std::int64_t layer_ = -1;
  std::map<std::string, std::size_t> places_;  // of a layer's tensors in the map
  std::vector<std::vector<Placed>> placed_;    // of each tensor
  WeightMap map_;
};

}  // namespace

bool has_tensor_per_expert(const Parameter& parameter, const Spelling& names) {
  return view_of(parameter, names).tensor.find(kExpert) != std::string::npos;
}

std::string file_tensor(const Parameter& parameter, const Spelling& names, std::int64_t expert) {
  std::string name = view_of(parameter, names).tensor;
  if (const auto place = name.find(kExpert); place != std::string::npos)
    name.replace(place, kExpert.size(), std::to_string(expert));
  return parameter.layer < 0 ? name : fmt::format("model.layers.{}.{}", parameter.layer, name);
}

// Parameters of experts follow one another in a layer. Their file tensors go expert by expert.
WeightMap map_of(const Declarations& declared, const Spelling& names, DType dtype) {
  MapBuilder builder(names, dtype);
  std::vector<const Parameter*> together;
  for (const Parameter& parameter : declared.parameters) {
    const bool goes_on = !together.empty() && together.back()->is_per_expert() &&
                         parameter.is_per_expert() && together.back()->layer == parameter.layer;
    if (!goes_on && !together.empty()) {
      builder.add(together);
      together.clear();
    }
    together.push_back(&parameter);
  }
  if (!together.empty()) builder.add(together);
  WeightMap map = builder.take();
  require_all_elements(map, declared);
  return map;
}

WeightMap make_weight_map(const ModelConfig& config, std::size_t spelling, DType dtype) {
  WeightMap map = map_of(declare(config.spec), config.spec.spellings.at(spelling), dtype);
  map.spelling = spelling;
  return map;
}

WeightMap make_weight_map(const ModelConfig& config) {
  return make_weight_map(config, 0, export_dtype(config));
}

}  // namespace anabatic::model
