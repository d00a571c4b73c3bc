// SPDX-License-Identifier: Apache-2.0
// What the pairs of a step are like: sums that a program leaves after each forward.
#pragma once
#include <array>
#include <optional>

#include "anabatic/events.h"
#include "spec/preference.h"
#include "train/model_session.h"

namespace anabatic::train {

class PreferenceSums {
 public:
  // After the forward of a micro-batch; nothing where its program has no pairs.
  void add(const BoundProgram& program);
  std::optional<PreferenceMetrics> means() const;
  double largest_margin() const { return sums_[spec::kLargestMargin]; }  // |z|

 private:
  bool is_of_pairs_ = false;
  std::array<double, spec::kNumPreferenceSums> sums_{};
};

}  // namespace anabatic::train
