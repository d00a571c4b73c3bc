// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

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
    for (FileTensor& tensor : map_.tensors) {
      check_turns(tensor);
      if (tensor.is_transposed) std::swap(tensor.shape.back(), *(tensor.shape.end() - 2));
    }
    return std::move(map_);
  }

 private:
  // The matrix of one expert, or the whole parameter where there are no experts.
  void add_matrix(const Parameter& parameter, std::int64_t expert, std::int64_t count) {
    std::vector<std::int64_t> shape = parameter.shape;
    const FileView& view = view_of(parameter, names_);
    const bool is_alone = has_tensor_per_expert(parameter, names_);
    const bool has_matrices = shape.size() > (parameter.is_per_expert() ? 2 : 1);
    if (is_alone) shape.erase(shape.begin());
    if (view.has_leading_one) shape.insert(shape.begin(), 1);
    // The axis along which tensors that share a file tensor follow one another.
    const std::size_t rows = shape.size() - (has_matrices ? 2 : 1);
    std::string name = file_tensor(parameter, names_, expert);
    const auto [place, is_new] = places_.try_emplace(name, map_.tensors.size());
    if (is_new)
      map_.tensors.push_back({.name = std::move(name),
                              .dtype = dtype_,
                              .shape = shape,
                              .pieces = {},
                              .is_transposed = view.is_transposed && has_matrices});
    FileTensor& tensor = map_.tensors[place->second];
    const std::size_t grown = view.joins_columns ? rows + 1 : rows;
    const std::int64_t in_turn = view.joins_columns ? 1 : view.rows_in_turn;
    if (!is_new && expert == 0) {
      tensor.shape[grown] += shape[grown];
      if (in_turn > 0) ++tensor.num_alternating;
    }
    add_piece(tensor, {.state = parameter.name(),
                       .offset = expert * count,
                       .count = count,
                       .row_elements = has_matrices ? parameter.shape.back() : 1,
                       .heads = view.heads,
                       .rows_in_turn = in_turn});
  }

  // Merges the piece with the previous one where it continues that.
  static void add_piece(FileTensor& tensor, WeightPiece piece) {
    const std::int64_t head = piece.heads.rows * piece.row_elements;
    ANABATIC_CHECK(head == 0 || piece.count % head == 0,
                   "[weights] {}: expected whole heads of {} rows", piece.state, piece.heads.rows);
    if (!tensor.pieces.empty()) {
      WeightPiece& last = tensor.pieces.back();
      if (last.state == piece.state && last.offset + last.count == piece.offset) {
        last.count += piece.count;
        return;
      }
    }
    tensor.pieces.push_back(std::move(piece));
  }

  // Pieces that alternate have equally many turns, all of them whole.
  static void check_turns(const FileTensor& tensor) {
    if (tensor.num_alternating == 1) return;
    const auto turn = [](const WeightPiece& piece) {
      return piece.rows_in_turn * piece.row_elements;
    };
    const WeightPiece& first = tensor.pieces.front();
    for (const WeightPiece& piece : tensor.pieces)
      ANABATIC_CHECK(turn(piece) > 0 && piece.count % turn(piece) == 0 &&
                         piece.count / turn(piece) == first.count / turn(first),
                     "[weights] {}: expected {} to have as many turns as {}", tensor.name,
                     piece.state, first.state);
  }

  const Spelling& names_;
  DType dtype_;
  std::int64_t layer_ = -1;
  std::map<std::string, std::size_t> places_;  // of a layer's tensors in the map
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
  if (parameter.layer < 0) return name;
  const auto layers = std::find_if(names.begin(), names.end(), [](const Renamed& renamed) {
    return renamed.parameter == kLayers;
  });
  return fmt::format("{}.{}.{}", layers == names.end() ? "model.layers" : layers->file.tensor,
                     parameter.layer, name);
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
  WeightMap map = make_weight_map(config, 0, export_dtype(config));
  std::set<std::string> in_f32;
  for (const Parameter& parameter : declare(config.spec).parameters)
    if (parameter.is_saved_in_f32) in_f32.insert(parameter.name());
  for (FileTensor& tensor : map.tensors)
    if (in_f32.contains(tensor.pieces.front().state)) tensor.dtype = DType::kFloat32;
  return map;
}

}  // namespace anabatic::model
