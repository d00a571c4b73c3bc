// SPDX-License-Identifier: Apache-2.0
// What the int8 products of a step count, by unit.
#pragma once
#include <vector>

#include "anabatic/events.h"
#include "kernels/coding_counts.h"
#include "train/adaptive/product_calls.h"
#include "train/model_session.h"

namespace anabatic::train {

// Those of the forward, without what is recomputed, and of input gradients. So shares do not depend
// on a plan, nor on the number of threads.
class ProductCounts {
 public:
  ProductCounts() = default;
  explicit ProductCounts(const ProductCalls& calls);

  // Takes what the program counted since it was last asked.
  void take(const BoundProgram& program, const ProductCalls& calls);
  void clear();
  bool empty() const;

  // By unit.
  const kernels::CodingCounts& of_input(std::size_t unit) const { return of_inputs_[unit]; }
  const kernels::CodingCounts& of_gradient(std::size_t unit) const { return of_gradients_[unit]; }
  std::vector<Int8Counts> shares(const ProductCalls& calls) const;
  kernels::CodingCounts total() const;  // a call counts once, however many weights it has

 private:
  std::vector<kernels::CodingCounts> of_inputs_, of_gradients_;
  kernels::CodingCounts total_{};
};

// 0 of none.
inline double share_of(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// What they counted, for StepMetrics and StepResult: nothing without int8 products.
template <class Metrics>
void add_counts(const ProductCounts& counts, const ProductCalls& calls, Metrics& metrics) {
  if (counts.empty()) return;
  const kernels::CodingCounts total = counts.total();
  metrics.int8 = counts.shares(calls);
  metrics.int8_zeroed = share_of(total.zeroed, total.elements);
  metrics.int8_fallback = share_of(total.fallbacks, total.blocks);
}

}  // namespace anabatic::train
