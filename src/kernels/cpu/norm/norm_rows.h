// SPDX-License-Identifier: Apache-2.0
// rms_norm of one row, for the ops that fuse it.
#pragma once
#include <cmath>
#include <limits>

#include "kernels/cpu/vector_pairs.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// Σ term(i, count) over [begin, end): pair(i) gives the terms of a whole pair, lanes(i, count)
// those of at most a vector.
template <class PairTerms, class LaneTerms>
ANABATIC_INLINE float sum_block_of_pairs(std::int64_t begin, std::int64_t end, PairTerms& pair,
                                         LaneTerms& lanes) {
  Floats sums[4] = {};
  std::int64_t i = begin;
  for (; i + 2 * kPair <= end; i += 2 * kPair) {
    pair(i, sums[0], sums[1]);
    pair(i + kPair, sums[2], sums[3]);
  }
  for (; i + kPair <= end; i += kPair) pair(i, sums[0], sums[1]);
  for_lanes(i, end, [&](std::int64_t j, int n) { lanes(j, n, sums[2]); });
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The same over [0, width), in blocks that a double adds up: in an order that depends on width
// alone.
template <class PairTerms, class LaneTerms>
ANABATIC_INLINE double sum_pairs(std::int64_t width, PairTerms&& pair, LaneTerms&& lanes) {
  static_assert(kSumElements % (2 * kPair) == 0);
  double sum = 0;
  for (std::int64_t begin = 0; begin < width; begin += kSumElements) {
    const std::int64_t left = width - begin;
    sum += static_cast<double>(
        sum_block_of_pairs(begin, left < kSumElements ? width : begin + kSumElements, pair, lanes));
  }
  return sum;
}

// 1 / sqrt(mean square + epsilon) of x[width].
template <class T>
float reciprocal_rms(const T* x, std::int64_t width, double epsilon) {
  const double sum = sum_pairs(
      width,
      [&](std::int64_t i, Floats& first, Floats& second) {
        const Pair value = load_pair(x + i);
        first = madd(value.first, value.first, first);
        second = madd(value.second, value.second, second);
      },
      [&](std::int64_t i, int n, Floats& sum_of_lanes) {
        const Floats value = load(x + i, n);
        sum_of_lanes = madd(value, value, sum_of_lanes);
      });
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + epsilon));
}

// The weight in `space` (of a float an element), whole pairs in load_pair's order of T, its NaNs as
// store_pair keeps them.
template <class T>
const float* paired_weight(const TensorView& view, std::byte* space) {
  const float* weight = view.as<const float>();
  if constexpr (sizeof(T) == sizeof(float)) return weight;
  const std::int64_t width = size(view), whole = width / kPair * kPair;
  float* paired = reinterpret_cast<float*>(space);
  for (std::int64_t i = 0; i < width; ++i) {
    const std::int64_t lane = i % kPair;
    const float value =
        weight[i] == weight[i] ? weight[i] : std::numeric_limits<float>::quiet_NaN();
    paired[i < whole ? i - lane + lane / 2 + lane % 2 * kLanes : i] = value;
  }
  return paired;
}

// y = weight · round(x · rstd), the weight from paired_weight.
template <bool kStreams, class T>
void normalise(const T* x, const float* weight, float rstd, std::int64_t width, T* y) {
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair value = load_pair(x + i), w = load_pair(weight + i);
    store_pair<kStreams>(y + i, {w.first * round_quickly<T>(value.first * rstd),
                                 w.second * round_quickly<T>(value.second * rstd)});
  }
  for_lanes(whole, width, [&](std::int64_t i, int n) {
    store(y + i, load(weight + i, n) * round_to<T>(load(x + i, n) * rstd), n);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
