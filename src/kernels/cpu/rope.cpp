// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/vector_pairs.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

namespace {

// Cosines and sines of some couples; whole pairs stand in load_pair's order of T, NaNs as
// store_pair keeps them.
struct Turns {
  static constexpr std::int64_t kMost = 256;
  alignas(64) float cosines[kMost];
  alignas(64) float sines[kMost];
};

template <class T>
void pair_turns(const float* from, std::int64_t count, float sign, float* to) {
  const std::int64_t whole = count / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair value = load_pair_as<T>(from + i);
    store(to + i, plain_nan(sign * value.first));
    store(to + i + kLanes, plain_nan(sign * value.second));
  }
  for_lanes(whole, count,
            [&](std::int64_t i, int n) { store(to + i, sign * load(from + i, n), n); });
}

// `count` couples (x[i], x[half + i]): both elements are read before either is written.
template <bool kStreams, class T>
ANABATIC_INLINE void rotate(const T* x, const Turns& turns, std::int64_t count, std::int64_t half,
                            T* y) {
  const float *cosines = turns.cosines, *sines = turns.sines;
  const std::int64_t whole = count / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair c = load_pair(cosines + i), s = load_pair(sines + i);
    const Pair a = load_pair(x + i), b = load_pair(x + half + i);
    store_pair<kStreams>(
        y + i, {a.first * c.first - b.first * s.first, a.second * c.second - b.second * s.second});
    store_pair<kStreams>(y + half + i, {b.first * c.first + a.first * s.first,
                                        b.second * c.second + a.second * s.second});
  }
  for_lanes(whole, count, [&](std::int64_t i, int n) {
    const Floats c = load(cosines + i, n), s = load(sines + i, n);
    const Floats first = load(x + i, n), second = load(x + half + i, n);
    store(y + i, first * c - second * s, n);
    store(y + half + i, second * c + first * s, n);
  });
}

// Columns of every head beyond the rotated ones.
template <class T>
void copy_rest(const Arguments& args, std::int64_t begin, std::int64_t end, std::int64_t rotary,
               std::int64_t head_dim) {
  const T* x = args.inputs[0].as<const T>();
  T* y = args.outputs[0].as<T>();
  if (x == y || rotary == head_dim) return;
  const std::int64_t width = columns(args.inputs[0]);
  for (std::int64_t head = begin * width; head < end * width; head += head_dim)
    std::copy(x + head + rotary, x + head + head_dim, y + head + rotary);
}

}  // namespace

// May write over x.
void rope(const Arguments& args) {
  const std::int64_t head_dim = spec::get_int(*args.attributes, "head_dim");
  const std::int64_t width = columns(args.inputs[0]), rotary = columns(args.inputs[1]),
                     half = rotary / 2;
  const float sign = spec::get_bool_or(*args.attributes, "inverse", false) ? -1.0f : 1.0f;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    // Every couple's halves must begin where a vector may.
    const std::int64_t bytes = sizeof(T);
    const bool streams =
        may_stream(args, width * bytes) && half * bytes % 64 == 0 && head_dim * bytes % 64 == 0;
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      Turns turns;
      with_stream(streams, [&](auto constant) {
        for (std::int64_t t = begin; t < end; ++t)
          for (std::int64_t first = 0; first < half; first += Turns::kMost) {
            const std::int64_t count = std::min(Turns::kMost, half - first);
            const float* table = args.inputs[1].as<const float>() + t * rotary + first;
            pair_turns<T>(table, count, 1.0f, turns.cosines);
            pair_turns<T>(table + half, count, sign, turns.sines);
            for (std::int64_t head = t * width + first; head < (t + 1) * width; head += head_dim)
              rotate<constant.value>(args.inputs[0].as<const T>() + head, turns, count, half,
                                     args.outputs[0].as<T>() + head);
          }
      });
      copy_rest<T>(args, begin, end, rotary, head_dim);
    };
    args.team->for_range(rows(args.inputs[0]), row_grain(width), run);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
