// SPDX-License-Identifier: Apache-2.0
#include "train/lora/grid_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace anabatic::train {

void GridRows::add(Name weight, const WeightGrid& grid, std::int64_t elements,
                   std::int64_t columns) {
  Weight& added = weights_[weight];
  added.grid = grid;
  added.columns = columns;
  added.rows.resize(static_cast<std::size_t>(elements / columns));
}

void GridRows::write(Name state, std::int64_t first, std::span<const float> values) {
  const auto found = weights_.find(state);
  if (found == weights_.end()) return write_(state, first, values);
  Weight& weight = found->second;
  std::vector<float> whole;
  while (!values.empty()) {
    const std::int64_t row = first / weight.columns, column = first % weight.columns,
                       count = std::min(weight.columns - column, std::ssize(values));
    const std::span<const float> part = values.first(static_cast<std::size_t>(count));
    values = values.subspan(part.size());
    first += count;
    if (count == weight.columns) {
      whole.assign(part.begin(), part.end());
    } else {
      const std::lock_guard lock(mutex_);
      std::vector<float>& begun = begun_[{state, row}];
      ANABATIC_CHECK(std::ssize(begun) == column,
                     "[grid rows] row {} of {} has {} elements, not {}", row, text(state),
                     begun.size(), column);
      begun.insert(begun.end(), part.begin(), part.end());
      if (std::ssize(begun) < weight.columns) continue;
      whole = std::move(begun);
      begun_.erase({state, row});
    }
    write_row(state, weight, row, whole);
  }
}

void GridRows::write_row(Name state, Weight& weight, std::int64_t row, std::span<float> values) {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  ANABATIC_REQUIRE(bad == values.end(),
                   "[quantization] {}: expected finite weights for the grid {}, got {} in row {}",
                   text(state), to_string(weight.grid), *bad, row);
  weight.rows[static_cast<std::size_t>(row)] = round_row(weight.grid, values);
  write_(state, row * weight.columns, values);
}

std::map<Name, GridError> GridRows::errors() const {
  ANABATIC_CHECK(begun_.empty(), "[grid rows] {} rows have begun and not ended", begun_.size());
  std::map<Name, GridError> errors;
  for (const auto& [name, weight] : weights_) {
    GridErrorSums sums;
    for (const GridErrorSums& row : weight.rows) sums.add(row);
    errors[name] = sums.error();
  }
  return errors;
}

}  // namespace anabatic::train
