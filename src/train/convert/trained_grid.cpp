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

}  // namespace

GridError grid_error(const WeightGrid& grid, std::int64_t elements, std::int64_t columns,
                     const std::function<void(std::int64_t first, std::span<float> values)>& read) {
  GridError error;
  double squares = 0, of_values = 0;
  const std::int64_t group = grid.group > 0 ? grid.group : columns;
  std::vector<float> row(static_cast<std::size_t>(columns));
  with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
    for (std::int64_t first = 0; first < elements; first += columns) {
      read(first, row);
      for (std::int64_t begin = 0; begin < columns; begin += group) {
        const auto values = std::span<const float>(row).subspan(static_cast<std::size_t>(begin),
                                                                static_cast<std::size_t>(group));
        const float largest =
            *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); });
        const GridScale scale = Encoder::scale_of(largest);
        error.largest = std::max(error.largest, std::abs(double{largest}));
        for (const float value : values) {
          const double difference =
              double{Encoder::value_of(Encoder::element_of(value, scale.rule), scale.scale)} -
              double{value};
          error.largest_error = std::max(error.largest_error, std::abs(difference));
          squares += difference * difference;
          of_values += double{value} * double{value};
        }
      }
    }
  });
  error.relative_error = of_values > 0 ? std::sqrt(squares / of_values) : 0;
  return error;
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
  const OrderedJson json{{"grid", to_string(trained.grid)},
                         {"has_begun", trained.has_begun},
                         {"parameters", parameters}};
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
