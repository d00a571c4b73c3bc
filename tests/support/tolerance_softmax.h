// SPDX-License-Identifier: Apache-2.0
// What softmax and log-sum-exp in f32 are off by, for the bounds of losses and routers.
#pragma once
#include <algorithm>
#include <cmath>

#include "support/tolerance.h"

namespace anabatic::testing {

// An exp, log, sin or reciprocal of a vector library is off by at most 4 ULPs.
inline constexpr double kFunction = 8.0;
inline constexpr double kU = 0x1.0p-24;
// A function below the smallest normal float may be 0 before it is multiplied by something large.
inline constexpr double kUnderflow = 0x1p-126;

inline double g(double num_operations) { return 2 * gamma(num_operations, DType::kFloat32); }

struct Softmax {
  double lse, largest;
};

inline Softmax softmax_of(const Values& logits, std::size_t t) {
  const auto width = static_cast<std::size_t>(logits.type.dim(-1));
  double largest = -HUGE_VAL, sum = 0;
  for (std::size_t i = 0; i < width; ++i) largest = std::max(largest, logits.data[t * width + i]);
  for (std::size_t i = 0; i < width; ++i) sum += std::exp(logits.data[t * width + i] - largest);
  return {largest + std::log(sum), largest};
}

// log-sum-exp: the sum has relative error γ of the roundings of a row + u·(range), which the
// logarithm turns absolute, and the result is rounded.
inline double lse_error(const Softmax& s, double width) {
  return g(row_roundings(width) + kFunction) + 4 * kU * (std::abs(s.largest) + std::abs(s.lse) + 1);
}

// exp(l - lse): the difference's rounding and the error of lse turn relative.
inline double probability_error(const Softmax& s, double logit, double width) {
  return lse_error(s, width) + g(kFunction) + 2 * kU * (std::abs(logit) + std::abs(s.lse));
}

}  // namespace anabatic::testing
