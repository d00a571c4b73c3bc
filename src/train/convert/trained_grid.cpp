// SPDX-License-Identifier: Apache-2.0
#include "train/convert/trained_grid.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/text.h"
#include "tensor/grid_elements.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kLargestTrainedGrid = std::int64_t{1} << 26;
constexpr const char *kActivations = "activations", *kInt8Token = "int8_token";

}  // namespace

void GridErrorSums::add(const GridErrorSums& other) {
  largest = std::max(largest, other.largest);
  largest_error = std::max(largest_error, other.largest_error);
  squares += other.squares;
  of_values += other.of_values;
}

GridError GridErrorSums::error() const {
  return {.largest = largest,
          .largest_error = largest_error,
          .relative_error = of_values > 0 ? std::sqrt(squares / of_values) : 0};
}

GridErrorSums round_row(const WeightGrid& grid, std::span<float> row) {
  GridErrorSums sums;
  const std::size_t group = grid.group > 0 ? static_cast<std::size_t>(grid.group) : row.size();
  with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
    for (std::size_t begin = 0; begin < row.size(); begin += group) {
      const std::span<float> values = row.subspan(begin, group);
      const float largest =
          *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); });
      const GridScale scale = Encoder::scale_of(largest);
      sums.largest = std::max(sums.largest, std::abs(double{largest}));
      for (float& value : values) {
        const float rounded =
            Encoder::value_of(Encoder::element_of(value, scale.rule), scale.scale);
        const double difference = double{rounded} - double{value};
        sums.largest_error = std::max(sums.largest_error, std::abs(difference));
        sums.squares += difference * difference;
        sums.of_values += double{value} * double{value};
        value = rounded;
      }
    }
  });
  return sums;
}

GridError grid_error(const WeightGrid& grid, std::int64_t elements, std::int64_t columns,
                     const std::function<void(std::int64_t first, std::span<float> values)>& read) {
  GridErrorSums sums;
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t first = 0; first < elements; first += columns) {
    read(first, row);
    sums.add(round_row(grid, row));
  }
  return sums.error();
}

std::string to_string(const TrainedGrid& trained) {
  double sum = 0, most = 0;
  std::string_view worst;
  std::int64_t count = 0;
  for (const auto& [name, error] : trained.parameters) {
    if (!error) continue;
    sum += error->relative_error;
    ++count;
    if (error->relative_error < most) continue;
    most = error->relative_error;
    worst = name;
  }
  if (count == 0) return to_string(trained.grid);
  return fmt::format("{}: relative error {:.2f} %, at most {:.2f} % ({})", to_string(trained.grid),
                     100 * sum / static_cast<double>(count), 100 * most, worst);
}

void write_trained_grid(const std::filesystem::path& directory, const TrainedGrid& trained) {
  OrderedJson parameters = OrderedJson::object();
  for (const auto& [name, error] : trained.parameters) {
    OrderedJson& json = parameters[name] = OrderedJson::object();
    if (error)
      json = {{"largest", error->largest},
              {"largest_error", error->largest_error},
              {"relative_error", error->relative_error}};
  }
  OrderedJson json{{"grid", to_string(trained.grid)}, {"has_begun", trained.has_begun}};
  if (trained.rounds_activations) json[kActivations] = kInt8Token;
  json["parameters"] = parameters;
  write_file_atomically(directory / kTrainedGridFile, dump_json(json, 1) + "\n");
}

std::optional<TrainedGrid> find_trained_grid(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / kTrainedGridFile;
  if (!std::filesystem::exists(file)) return std::nullopt;
  const std::string place = fmt::format("[quantization] {}", file.string());
  const Json json = parse_json_object(read_file(file, kLargestTrainedGrid), place);
  const JsonNode top(json, place);
  TrainedGrid trained;
  const JsonNode grid = top.at("grid");
  const auto known = weight_grid_from_string(grid.as_string());
  if (!known) grid.refuse("a grid of weights, such as q8_0");
  trained.grid = *known;
  trained.has_begun = top.at("has_begun").as_bool();
  if (top.has(kActivations)) {
    const JsonNode activations = top.at(kActivations);
    if (activations.as_string() != kInt8Token) activations.refuse(kInt8Token);
    trained.rounds_activations = true;
  }
  for (const auto& [name, error] : top.at("parameters").members()) {
    std::optional<GridError>& found = trained.parameters[name];
    if (error.has("largest"))
      found = {.largest = error.at("largest").as_number(),
               .largest_error = error.at("largest_error").as_number(),
               .relative_error = error.at("relative_error").as_number()};
  }
  return trained;
}

}  // namespace anabatic::train
