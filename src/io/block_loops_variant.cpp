// SPDX-License-Identifier: Apache-2.0
// One source for all instruction sets. Everything is inlined into the loops, so that the linker
// never takes one variant's function for another's. Multiply and add stay apart, as in the others.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "io/block_loops.h"
#include "tensor/grid_elements.h"

#define ANABATIC_LOOP __attribute__((flatten))

namespace anabatic::io {
namespace {

constexpr int kSmall = 32;  // elements of a block

std::uint16_t load_half(const std::byte* bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

void store_half(std::byte* bytes, std::uint16_t bits) { std::memcpy(bytes, &bits, sizeof bits); }

ANABATIC_LOOP void from_f16(const std::byte* blocks, std::int64_t count, float* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = half_to_float(load_half(blocks + 2 * i));
}

ANABATIC_LOOP void from_bf16(const std::byte* blocks, std::int64_t count, float* values) {
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = to_float(BFloat16{load_half(blocks + 2 * i)});
}

ANABATIC_LOOP void to_f16(const float* values, std::int64_t count, std::byte* blocks) {
  for (std::int64_t i = 0; i < count; ++i) store_half(blocks + 2 * i, float_to_half(values[i]));
}

ANABATIC_LOOP void to_bf16(const float* values, std::int64_t count, std::byte* blocks) {
  for (std::int64_t i = 0; i < count; ++i) store_half(blocks + 2 * i, to_bfloat16(values[i]).bits);
}

ANABATIC_LOOP float largest_finite(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(values[i]) & 0x7FFFFFFF;
    const std::int32_t finite = magnitude < 0x7F800000 ? magnitude : 0;
    largest = finite > largest ? finite : largest;
  }
  return std::bit_cast<float>(largest);
}

// By bits, which order magnitudes.
float largest_magnitude(const float* values) {
  std::int32_t largest = 0;
  for (int i = 0; i < kSmall; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(values[i]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

// The first element of that magnitude; the last one if there is none, as where it is NaN.
float first_of_magnitude(const float* values, float magnitude) {
  int first = kSmall - 1;
  for (int i = 0; i < kSmall; ++i) {
    const int candidate = std::fabs(values[i]) == magnitude ? i : kSmall - 1;
    first = candidate < first ? candidate : first;
  }
  return values[first];
}

void to_q8_0_elements(const float* values, float inverse, std::byte* bytes) {
  std::int8_t elements[kSmall];
  for (int i = 0; i < kSmall; ++i) {
    elements[i] =
        static_cast<std::int8_t>(GridElements<GridFormat::kQ8_0>::element_of(values[i], inverse));
  }
  std::memcpy(bytes, elements, sizeof elements);
}

void to_q4_0_elements(const float* values, float inverse, std::byte* bytes) {
  std::int32_t elements[kSmall];
  for (int i = 0; i < kSmall; ++i) {
    elements[i] = GridElements<GridFormat::kQ4_0>::element_of(values[i], inverse);
  }
  std::uint8_t pairs[kSmall / 2];
  for (int i = 0; i < kSmall / 2; ++i)
    pairs[i] = static_cast<std::uint8_t>(elements[i] | elements[kSmall / 2 + i] << 4);
  std::memcpy(bytes, pairs, sizeof pairs);
}

// Blocks of a scale and elements. The scales of a few blocks are computed at once, in lanes.
template <GridFormat kFormat, int kBytes, class Extreme, class Elements>
void to_scaled(const float* values, std::int64_t count, std::byte* blocks, const Extreme& extreme,
               const Elements& elements) {
  constexpr int kGroup = 16;
  float extremes[kGroup] = {}, inverses[kGroup];
  std::uint16_t halves[kGroup];
  for (std::int64_t done = 0; done < count; done += kGroup) {
    const int group = static_cast<int>(std::min<std::int64_t>(kGroup, count - done));
    for (int b = 0; b < group; ++b) extremes[b] = extreme(values + b * kSmall);
    for (int b = 0; b < kGroup; ++b) {
      const GridScale scale = GridElements<kFormat>::scale_of(extremes[b]);
      inverses[b] = scale.rule;
      halves[b] = float_to_half(scale.scale);  // exact
    }
    for (int b = 0; b < group; ++b, values += kSmall, blocks += kBytes) {
      store_half(blocks, halves[b]);
      elements(values, inverses[b], blocks + 2);
    }
  }
}

ANABATIC_LOOP void to_q8_0(const float* values, std::int64_t count, std::byte* blocks) {
  to_scaled<GridFormat::kQ8_0, 2 + kSmall>(values, count, blocks, largest_magnitude,
                                           to_q8_0_elements);
}

ANABATIC_LOOP void to_q4_0(const float* values, std::int64_t count, std::byte* blocks) {
  to_scaled<GridFormat::kQ4_0, 2 + kSmall / 2>(
      values, count, blocks,
      [](const float* block) { return first_of_magnitude(block, largest_magnitude(block)); },
      to_q4_0_elements);
}

}  // namespace

#if defined(__AVX512F__)
const BlockLoops kAvx512Loops
#elif defined(__AVX2__)
const BlockLoops kAvx2Loops
#else
const BlockLoops kPortableLoops
#endif
    {from_f16, from_bf16, to_f16, to_bf16, to_q8_0, to_q4_0, largest_finite};

}  // namespace anabatic::io
