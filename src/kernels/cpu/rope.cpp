// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

namespace {

// Cosines and sines of some couples; whole pairs are in load_pair's order of T, NaNs as
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

// One tensor of a call, all of whose rows rotate by one table.
template <class T>
struct Rotation {
  const T* x;
  T* y;  // may be x
  std::int64_t width;
  const float* weight = nullptr;  // from paired_weight: x is normalised first
  double epsilon = 0;
};

// Heads up to this long are normalised in a buffer, so that the results may bypass the caches.
inline constexpr std::int64_t kMostNear = 1024;

template <bool kStreams, class T>
void rotate_head(const Rotation<T>& part, std::int64_t at, const Turns& turns, std::int64_t first,
                 std::int64_t count, std::int64_t half, std::int64_t head_dim) {
  const T* x = part.x + at;
  T* y = part.y + at;
  alignas(64) T kept[kStreams ? kMostNear : 1];
  if (part.weight != nullptr) {
    T* near = kStreams ? kept : y;
    // The first couples of a head normalise all of it.
    if (kStreams || first == 0)
      normalise<false>(x, part.weight, reciprocal_rms(x, head_dim, part.epsilon), head_dim, near);
    x = near;
  }
  rotate<kStreams>(x + first, turns, count, half, y + first);
  if (first == 0 && x != y) std::copy(x + 2 * half, x + head_dim, y + 2 * half);
}

template <class T, std::size_t N>
void rotate_rows(const Arguments& args, const Rotation<T> (&parts)[N], const TensorView& table) {
  const std::int64_t head_dim = spec::get_int(*args.attributes, "head_dim");
  const std::int64_t rotary = columns(table), half = rotary / 2;
  const float sign = spec::get_bool_or(*args.attributes, "inverse", false) ? -1.0f : 1.0f;
  // Each half of a couple must begin where a vector may.
  const std::int64_t bytes = sizeof(T);
  bool streams = half * bytes % 64 == 0 && head_dim * bytes % 64 == 0;
  std::int64_t width = 0;
  for (const Rotation<T>& part : parts) {
    width += part.width;
    streams = streams && may_stream(args, part.width * bytes) &&
              (part.weight == nullptr || head_dim <= kMostNear);
  }
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    Turns turns;
    with_stream(streams, [&](auto constant) {
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t first = 0; first == 0 || first < half; first += Turns::kMost) {
          const std::int64_t count = std::min(Turns::kMost, half - first);
          const float* row = table.as<const float>() + t * rotary + first;
          pair_turns<T>(row, count, 1.0f, turns.cosines);
          pair_turns<T>(row + half, count, sign, turns.sines);
          for (const Rotation<T>& part : parts)
            for (std::int64_t at = t * part.width; at < (t + 1) * part.width; at += head_dim)
              rotate_head<constant.value>(part, at, turns, first, count, half, head_dim);
        }
    });
  };
  args.launch.team->for_range(rows(table), row_grain(width), run);
}

}  // namespace

// May write over x.
void rope(const Arguments& args) {
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const Rotation<T> parts[]{
        {args.inputs[0].as<const T>(), args.outputs[0].as<T>(), columns(args.inputs[0])}};
    rotate_rows(args, parts, args.inputs[1]);
  });
}

// May write over both.
void rope_pair(const Arguments& args) {
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    Rotation<T> parts[2];
    for (std::size_t i = 0; i < 2; ++i) {
      parts[i] = {args.inputs[i].as<const T>(), args.outputs[i].as<T>(), columns(args.inputs[i])};
      if (args.inputs.size() == 3) continue;
      const TensorView& weight = args.inputs[3 + i];
      parts[i].epsilon = spec::get_double(*args.attributes, "epsilon");
      parts[i].weight = paired_weight<T>(
          weight, args.workspace + static_cast<std::int64_t>(i * sizeof(float)) * size(weight));
    }
    rotate_rows(args, parts, args.inputs[2]);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
