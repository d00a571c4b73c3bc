// SPDX-License-Identifier: Apache-2.0
// Norms of one row, for the ops that share them.
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

// weight · round(x · rstd) ahead of rounding, for elements of T.
template <class T>
ANABATIC_INLINE Floats rms_normalised(Floats x, float rstd, Floats weight) {
  return weight * round_quickly<T>(x * rstd);
}
// (x - mean) · rstd · weight + bias.
ANABATIC_INLINE Floats layer_normalised(Floats x, float mean, float rstd, Floats weight,
                                        Floats bias) {
  return madd((x - mean) * rstd, weight, bias);
}

// y = weight · round(x · rstd), the weight from paired_weight.
template <bool kStreams, class T>
void normalise(const T* x, const float* weight, float rstd, std::int64_t width, T* y) {
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair value = load_pair(x + i), w = load_pair(weight + i);
    store_pair<kStreams>(y + i, {rms_normalised<T>(value.first, rstd, w.first),
                                 rms_normalised<T>(value.second, rstd, w.second)});
  }
  for_lanes(whole, width, [&](std::int64_t i, int n) {
    store(y + i, load(weight + i, n) * round_to<T>(load(x + i, n) * rstd), n);
  });
}

// near = x + residual, and sum too where it is another place: sums that bypass the caches are
// normalised at once and so are kept near.
template <bool kStreams, class T>
void add_rows(const T* x, const T* residual, std::int64_t width, T* sum, T* near) {
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair a = load_pair(x + i), b = load_pair(residual + i);
    const Pair both{a.first + b.first, a.second + b.second};
    store_pair<false>(near + i, both);
    if (kStreams && near != sum) store_pair<kStreams>(sum + i, both);
  }
  for_lanes(whole, width, [&](std::int64_t i, int n) {
    const Floats both = load(x + i, n) + load(residual + i, n);
    store(near + i, both, n);
    if (near != sum) store(sum + i, both, n);
  });
}

// Stores the sum of input 0, whose rows are `width` wide, and `residual` as output 0, and calls
// body(row, sum of the row, whether results stream) with each row while it is near.
template <class T, class Body>
void for_sums(const Arguments& args, const TensorView& residual, std::int64_t num_rows,
              std::int64_t width, Body&& body) {
  const bool streams = may_stream(args, width * std::int64_t{sizeof(T)});
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    with_stream(streams, [&](auto constant) {
      constexpr std::int64_t kMostNear = 8192;
      alignas(64) T kept[constant.value ? kMostNear : 1];
      for (std::int64_t row = begin; row < end; ++row) {
        T* sum = args.outputs[0].as<T>() + row * width;
        T* near = constant.value && width <= kMostNear ? kept : sum;
        add_rows<constant.value>(args.inputs[0].as<const T>() + row * width,
                                 residual.as<const T>() + row * width, width, sum, near);
        body(row, near, constant);
      }
    });
  };
  args.launch.team->for_range(num_rows, row_grain(width), run);
}

// The first `count` lanes of x, zeroes in the others.
ANABATIC_INLINE Floats first_lanes(Floats x, int count) {
  Ints lane;
  for (int j = 0; j < kLanes; ++j) lane[j] = j;
  return lane < count ? x : Floats{};
}

ANABATIC_INLINE Pair operator-(const Pair& x, float mean) {
  return {x.first - mean, x.second - mean};
}

// The mean of a row, and 1 / sqrt(variance + epsilon). It takes two passes, since a mean of squares
// would cancel.
struct Moments {
  float mean, rstd;
};
template <class T>
Moments moments(const T* x, std::int64_t width, double epsilon) {
  const auto count = static_cast<double>(width);
  const double sum = sum_pairs(
      width,
      [&](std::int64_t i, Floats& first, Floats& second) {
        const Pair value = load_pair(x + i);
        first += value.first;
        second += value.second;
      },
      [&](std::int64_t i, int n, Floats& lanes) { lanes += load(x + i, n); });
  const auto mean = static_cast<float>(sum / count);
  const double squares = sum_pairs(
      width,
      [&](std::int64_t i, Floats& first, Floats& second) {
        const Pair centred = load_pair(x + i) - mean;
        first = madd(centred.first, centred.first, first);
        second = madd(centred.second, centred.second, second);
      },
      [&](std::int64_t i, int n, Floats& lanes) {
        const Floats centred = first_lanes(load(x + i, n) - mean, n);
        lanes = madd(centred, centred, lanes);
      });
  return {mean, static_cast<float>(1.0 / std::sqrt(squares / count + epsilon))};
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
