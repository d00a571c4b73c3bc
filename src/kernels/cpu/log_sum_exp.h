// SPDX-License-Identifier: Apache-2.0
// log Σ exp of a row, shared by the losses and the router.
#pragma once
#include <cmath>
#include <limits>

#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The result for x[count] is -inf for none or when all are -inf, and NaN when one is NaN.
template <class T>
double log_sum_exp(const T* x, std::int64_t count) {
  Floats largest_lanes = broadcast(-kInfinity);
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) largest_lanes = max(load(x + i), largest_lanes);
  float largest = max_lanes(largest_lanes);
  const Floats tail = load(x + whole, static_cast<int>(count - whole));
  for (std::int64_t i = 0; i < count - whole; ++i) largest = tail[i] > largest ? tail[i] : largest;
  if (largest == -kInfinity) {
    // NaNs win no comparison: only their sum shows them.
    const float total = sum_lanes(sum_over_lanes(
        count, [&](std::int64_t j, int n, Floats before) { return before + load(x + j, n); }));
    return total != total ? total : -kInfinity;
  }
  double sum = sum_of_row(whole, [&](std::int64_t j, int, Floats before) {
    return before + exp(load(x + j) - largest);
  });
  const Floats tail_exp = exp(tail - largest);
  for (int j = 0; j < count - whole; ++j) sum += tail_exp[j];
  return largest + std::log(sum);
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
