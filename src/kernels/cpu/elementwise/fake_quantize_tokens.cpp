// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/vector_pairs.h"
#include "kernels/cpu/vector_rows.h"
#include "tensor/grid_elements.h"
#include "tensor/token_scale.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// kPair elements from `begin` on, zeroes beyond the row's end.
template <class T>
ANABATIC_INLINE Pair pair_at(const T* row, std::int64_t begin, std::int64_t width) {
  if (width - begin >= kPair) return load_pair(row + begin);
  T rest[kPair] = {};
  std::memcpy(rest, row + begin, static_cast<std::size_t>(width - begin) * sizeof(T));
  return load_pair(rest);
}

// By the bits of magnitudes: what is not finite is above all numbers.
template <class T>
ANABATIC_INLINE float largest_of(const T* row, std::int64_t width) {
  Ints most{};
  const auto take = [&](Floats value) {
    const Ints bits = reinterpret_cast<Ints>(value) & 0x7FFFFFFF;
    most = bits > most ? bits : most;
  };
  for (std::int64_t k = 0; k < width; k += kPair) {
    const Pair pair = pair_at(row, k, width);
    take(pair.first);
    take(pair.second);
  }
  std::int32_t largest = 0;
  for (int lane = 0; lane < kLanes; ++lane) largest = std::max<std::int32_t>(largest, most[lane]);
  float value;
  std::memcpy(&value, &largest, sizeof value);
  return value;
}

template <class T>
void round_row(const T* x, std::int64_t width, T* y) {
  const TokenScale of_row = token_scale(largest_of(x, width));
  const Floats scale = broadcast(of_row.scale), inverse = broadcast(of_row.inverse);
  const auto rounded = [&](Floats value) { return nearest_even(value * inverse) * scale; };
  for (std::int64_t k = 0; k < width; k += kPair) {
    const Pair pair = pair_at(x, k, width);
    const Pair result{rounded(pair.first), rounded(pair.second)};
    if (width - k >= kPair) {
      store_pair<false>(y + k, result);
    } else {
      T rest[kPair];
      store_pair<false>(rest, result);
      std::memcpy(y + k, rest, static_cast<std::size_t>(width - k) * sizeof(T));
    }
  }
}

}  // namespace

void fake_quantize_tokens(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const std::int64_t width = columns(args.inputs[0]);
    const T* x = args.inputs[0].as<const T>();
    T* y = args.outputs[0].as<T>();
    args.launch.team->for_range(rows(args.inputs[0]), row_grain(width),
                                [&](std::int64_t begin, std::int64_t end) {
                                  for (std::int64_t t = begin; t < end; ++t)
                                    round_row(x + t * width, width, y + t * width);
                                });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
