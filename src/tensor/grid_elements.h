// SPDX-License-Identifier: Apache-2.0
// The encoders of weight grids: the scale of a group, the element that a value becomes, and the
// value of an element. Files are written by them and training rounds by them, so both have the same
// values. They take one value, or each lane of a GCC vector. Objects for an instruction set inline
// all of it, so that they have no symbols in common.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"
#include "tensor/float4.h"
#include "tensor/half.h"
#include "tensor/weight_grid.h"

namespace anabatic {

// What a group shares. `scale` multiplies elements, as the format stores it. `rule` is what finds
// them: a factor or a divisor, whatever the format takes.
struct GridScale {
  float scale, rule;
};

// Integers in place of the floats of V: a float, or a vector of them.
template <class V, bool = std::is_floating_point_v<V>>
struct IntegersOf {
  using Type = std::int32_t;
};
template <class V>
struct IntegersOf<V, false> {
  using Type = decltype(V{} < V{});
};
template <class V>
using Integers = typename IntegersOf<V>::Type;

template <class V>
inline V magnitude_of(V value) {
  if constexpr (std::is_floating_point_v<V>)
    return std::fabs(value);
  else
    return reinterpret_cast<V>(reinterpret_cast<Integers<V>>(value) & 0x7FFFFFFF);
}
// Towards zero.
template <class V>
inline Integers<V> integers_of(V value) {
  if constexpr (std::is_floating_point_v<V>)
    return static_cast<std::int32_t>(value);
  else
    return __builtin_convertvector(value, Integers<V>);
}
template <class V>
inline V floats_of(Integers<V> value) {
  if constexpr (std::is_floating_point_v<V>)
    return static_cast<V>(value);
  else
    return __builtin_convertvector(value, V);
}

// 0 for what is not a number or beyond every element: the inverse of a scale may be infinite, and
// the scale is 0 as a binary16 then.
template <class V>
inline V within_integers(V value) {
  return magnitude_of(value) < V{} + 256.0f ? value : V{};
}

inline float inverse_or_zero(float scale) {
  const float inverse = 1.0f / scale;
  return scale == 0.0f ? 0.0f : inverse;
}

// To nearest even, of less than 2^22: the sum's last bit is that of 1.
template <class V>
inline V nearest_even(V value) {
  return (value + 0x1.8p23f) - 0x1.8p23f;
}

// The scale of GGUF's types, which files hold as a binary16.
inline GridScale binary16_scale(float scale) {
  return {half_to_float(float_to_half(scale)), inverse_or_zero(scale)};
}

// Scales of compressed-tensors, in bf16. A scale of 0 has elements of 0.
inline GridScale bfloat16_scale(float scale) {
  const float rounded = to_float(to_bfloat16(scale));
  return {rounded, rounded == 0.0f ? 1.0f : rounded};
}

// The exponent of MXFP4 and its bias: that of the largest magnitude less 2, by a logarithm rounded
// to f32. A value just below a power of two counts as that power, which the format has.
std::uint8_t e8m0_of(float largest);

// 2^(scale - 128), for doubled values: subnormal for the two smallest.
inline float half_of_e8m0(std::uint8_t scale) {
  const std::uint32_t bits = scale < 2 ? 0x00200000u << scale : (scale - 1u) << 23;
  return __builtin_bit_cast(float, bits);
}

// `scale_of` takes the element of the largest magnitude; but for Q4_0 its sign does not count.
template <GridFormat kFormat>
struct GridElements;

// The largest element becomes 127 or -127.
template <>
struct GridElements<GridFormat::kQ8_0> {
  static GridScale scale_of(float largest) { return binary16_scale(std::fabs(largest) / 127.0f); }
  // The nearest integer, ties away from zero: not by adding a half, which is rounded.
  template <class V>
  static Integers<V> element_of(V value, V inverse) {
    const V scaled = within_integers(value * inverse);
    const Integers<V> whole = integers_of(scaled);
    return whole + integers_of((scaled - floats_of<V>(whole)) * 2.0f);
  }
  template <class V>
  static V value_of(Integers<V> element, V scale) {
    return scale * floats_of<V>(element);
  }
};

// Elements 0 to 15 stand for -8 to 7. The first element of the largest magnitude becomes -8,
// whatever its sign: the scale has the other one.
template <>
struct GridElements<GridFormat::kQ4_0> {
  static GridScale scale_of(float largest) { return binary16_scale(largest / -8.0f); }
  template <class V>
  static Integers<V> element_of(V value, V inverse) {
    const Integers<V> zero{}, most = zero + 15;
    const Integers<V> element = integers_of(within_integers(value * inverse + 8.5f));
    const Integers<V> positive = element < zero ? zero : element;
    return positive > most ? most : positive;
  }
  template <class V>
  static V value_of(Integers<V> element, V scale) {
    return scale * floats_of<V>(element - 8);
  }
};

// Elements are E2M1. The nearest value, ties to the smaller magnitude; zero has no sign.
template <>
struct GridElements<GridFormat::kMxfp4> {
  static GridScale scale_of(float largest) {
    const float half = half_of_e8m0(e8m0_of(std::fabs(largest)));
    return {half, half};
  }
  template <class V>
  static Integers<V> element_of(V value, V half) {
    const Integers<V> zero{}, one = zero + 1;
    const V magnitude = magnitude_of(value);
    // Midpoints of doubled values.
    Integers<V> element = magnitude > 0.5f * half ? one : zero;
    element += magnitude > 1.5f * half ? one : zero;
    element += magnitude > 2.5f * half ? one : zero;
    element += magnitude > 3.5f * half ? one : zero;
    element += magnitude > 5.0f * half ? one : zero;
    element += magnitude > 7.0f * half ? one : zero;
    element += magnitude > 10.0f * half ? one : zero;
    const Integers<V> negative = element + 8;
    return value < V{} ? (element > zero ? negative : element) : element;
  }
  template <class V>
  static V value_of(Integers<V> element, V half) {
    const Integers<V> zero{}, step = element & 7;
    // Doubled values: those from 5 on have larger steps.
    const Integers<V> upper = step + (step == 5   ? zero + 1
                                      : step == 6 ? zero + 2
                                      : step == 7 ? zero + 5
                                                  : zero);
    const V value = floats_of<V>(upper) * half;
    return element > zero + 7 ? -value : value;
  }
};

// Symmetric integers of compressed-tensors: the largest element becomes half of their range.
template <int kBits>
struct IntegerElements {
  static constexpr float kLargest = static_cast<float>((1 << (kBits - 1)) - 1);

  static GridScale scale_of(float largest) {
    return bfloat16_scale(std::fabs(largest) / (kLargest + 0.5f));
  }
  template <class V>
  static Integers<V> element_of(V value, V divisor) {
    const V most = V{} + kLargest, least = -most - 1.0f;
    const V element = nearest_even(within_integers(value / divisor));
    const V at_least = element < least ? least : element;
    return integers_of(at_least > most ? most : at_least);
  }
  template <class V>
  static V value_of(Integers<V> element, V scale) {
    return scale * floats_of<V>(element);
  }
};
template <>
struct GridElements<GridFormat::kInt8Channel> : IntegerElements<8> {};
template <>
struct GridElements<GridFormat::kInt4Group> : IntegerElements<4> {};

// Calls body with the encoder of the format.
template <class Body>
auto with_grid_elements(GridFormat format, Body&& body) {
  switch (format) {
    case GridFormat::kInt8Channel:
      return body(GridElements<GridFormat::kInt8Channel>{});
    case GridFormat::kInt4Group:
      return body(GridElements<GridFormat::kInt4Group>{});
    case GridFormat::kQ8_0:
      return body(GridElements<GridFormat::kQ8_0>{});
    case GridFormat::kQ4_0:
      return body(GridElements<GridFormat::kQ4_0>{});
    case GridFormat::kMxfp4:
      break;
  }
  return body(GridElements<GridFormat::kMxfp4>{});
}

}  // namespace anabatic
