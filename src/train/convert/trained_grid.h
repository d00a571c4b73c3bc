// SPDX-License-Identifier: Apache-2.0
// The grid that weights of a checkpoint were trained on, which says in what they are exported:
// anabatic.quantization.json in its directory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "tensor/weight_grid.h"

namespace anabatic::train {

inline constexpr const char* kTrainedGridFile = "anabatic.quantization.json";

// How far values of a weight are from those of the grid.
struct GridError {
  double largest = 0;         // magnitude of a value
  double largest_error = 0;   // likewise of a difference
  double relative_error = 0;  // root of the differences' squares over that of the values' squares

  bool operator==(const GridError&) const = default;
};

struct TrainedGrid {
  WeightGrid grid{};
  // By name; without errors where several ranks hold a weight.
  std::map<std::string, std::optional<GridError>, std::less<>> parameters{};
  bool has_begun = true;            // false: products still read the weights as they are
  bool rounds_activations = false;  // products read activations in int8 with a scale a token
};

// What errors are made of, of one row or of several.
struct GridErrorSums {
  double largest = 0, largest_error = 0;  // as in GridError
  double squares = 0, of_values = 0;      // of differences, and of values

  void add(const GridErrorSums& other);
  GridError error() const;
};

// Rounds a whole row to the values of the grid, as a file has them.
GridErrorSums round_row(const WeightGrid& grid, std::span<float> row);

// For a weight of so many elements, whose rows have `columns`. `read` fills elements from the given
// one on.
GridError grid_error(const WeightGrid& grid, std::int64_t elements, std::int64_t columns,
                     const std::function<void(std::int64_t first, std::span<float> values)>& read);

// "q4_0: relative error 7.1 %, at most 8.0 % (layers.3.experts.down.weight)".
std::string to_string(const TrainedGrid& trained);

void write_trained_grid(const std::filesystem::path& directory, const TrainedGrid& trained);
// Nothing where there is no such file. InvalidArgument where it does not say what it has to.
std::optional<TrainedGrid> find_trained_grid(const std::filesystem::path& directory);

}  // namespace anabatic::train
