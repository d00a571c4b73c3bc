// SPDX-License-Identifier: Apache-2.0
// The weights of a model with an adapter merged into them: W + scale · B A, in f32.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/lora/adapter.h"
#include "model/weights.h"

namespace anabatic::model {

// A and B of an adapter in memory, by the names of their states.
class AdapterValues {
 public:
  explicit AdapterValues(Adapter adapter);

  const Adapter& adapter() const { return adapter_; }
  StateWriter writer();        // as long as this lives
  StateReader reader() const;  // likewise
  std::span<const float> of(std::string_view state) const;

 private:
  Adapter adapter_;
  std::map<std::string, std::vector<float>, std::less<>> values_;
};

// Reads parameters from `source` and adds what the adapter adds. Sums of products are in double.
StateReader merged_reader(StateReader source, const AdapterValues& adapter);

// The Euclidean norm of what it adds to a group's weights, in all.
double norm_of_change(const AdapterValues& adapter, const AdapterGroup& group);

}  // namespace anabatic::model
