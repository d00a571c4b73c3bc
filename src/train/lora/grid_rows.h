// SPDX-License-Identifier: Apache-2.0
// Rounds frozen weights to a grid while they are loaded (passes/precision/fake_quantize.h). Values
// come in parts of rows, as files hold them, so there is never a whole weight in f32.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/name.h"
#include "train/convert/trained_grid.h"

namespace anabatic::train {

class GridRows {
 public:
  using Write = std::function<void(Name state, std::int64_t first, std::span<const float> values)>;

  // Whole rows of added weights go to `write` rounded, and other values as they come. Several
  // threads may call both.
  explicit GridRows(Write write) : write_(std::move(write)) {}

  // A weight of so many elements, [.., columns].
  void add(Name weight, const WeightGrid& grid, std::int64_t elements, std::int64_t columns);
  bool rounds(Name state) const { return weights_.contains(state); }

  // Elements from `first` on; those of a row ascend. Threads may write different rows.
  // InvalidArgument for values of a grid that are not finite.
  void write(Name state, std::int64_t first, std::span<const float> values);

  // How far each weight was from its grid. InternalError where a row has not come whole.
  std::map<Name, GridError> errors() const;

 private:
  struct Weight {
    WeightGrid grid{};
    std::int64_t columns = 0;
    std::vector<GridErrorSums> rows{};  // added in the order of rows, whichever thread came first
  };

  void write_row(Name state, Weight& weight, std::int64_t row, std::span<float> values);

  Write write_;
  std::map<Name, Weight> weights_;
  std::mutex mutex_;
  // Rows that have begun, by weight and row.
  std::map<std::pair<Name, std::int64_t>, std::vector<float>> begun_;
};

}  // namespace anabatic::train
