// SPDX-License-Identifier: Apache-2.0
#include "io/block_types.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "io/block_loops.h"
#include "tensor/grid_elements.h"

namespace anabatic::io {
namespace {

constexpr int kSmall = 32, kSuper = 256;  // elements of blocks

template <class T>
T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float load_half(const std::uint8_t* bytes) { return half_to_float(load<std::uint16_t>(bytes)); }

// A function of one block as the function of many that a BlockType holds.
template <int kElements, int kBytes, void (*kBlock)(const std::uint8_t*, float*)>
void dequantise_each(const std::byte* blocks, std::int64_t num_blocks, float* values) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(blocks);
  for (std::int64_t i = 0; i < num_blocks; ++i) kBlock(from + i * kBytes, values + i * kElements);
}

template <int kElements, int kBytes, void (*kBlock)(const float*, std::uint8_t*)>
void quantise_each(const float* values, std::int64_t num_blocks, std::byte* blocks) {
  auto* to = reinterpret_cast<std::uint8_t*>(blocks);
  for (std::int64_t i = 0; i < num_blocks; ++i) kBlock(values + i * kElements, to + i * kBytes);
}

template <int kBytes, void (*kElement)(const std::uint8_t*, float*)>
constexpr auto kElementwise = dequantise_each<1, kBytes, kElement>;

// Values of elements: groups of kGroup elements share a factor.
template <int kCount, int kGroup>
void scale_groups(const std::int8_t* elements, const float* factors, float* values) {
  for (int g = 0; g < kCount / kGroup; ++g)
    for (int i = 0; i < kGroup; ++i)
      values[g * kGroup + i] = factors[g] * static_cast<float>(elements[g * kGroup + i]);
}

template <int kCount, int kGroup>
void scale_and_shift_groups(const std::int8_t* elements, const float* factors, const float* minima,
                            float* values) {
  for (int g = 0; g < kCount / kGroup; ++g)
    for (int i = 0; i < kGroup; ++i)
      values[g * kGroup + i] =
          factors[g] * static_cast<float>(elements[g * kGroup + i]) - minima[g];
}

// The lower 4 bits of kCount bytes, then the upper ones.
template <int kCount>
void split_nibbles(const std::uint8_t* bytes, std::int8_t* elements) {
  for (int i = 0; i < kCount; ++i) {
    elements[i] = static_cast<std::int8_t>(bytes[i] & 15);
    elements[kCount + i] = static_cast<std::int8_t>(bytes[i] >> 4);
  }
}

// ---- Types without scales.

void dequantise_f32(const std::byte* blocks, std::int64_t count, float* values) {
  if (count > 0) std::memcpy(values, blocks, static_cast<std::size_t>(count) * sizeof(float));
}

void quantise_f32(const float* values, std::int64_t count, std::byte* blocks) {
  if (count > 0) std::memcpy(blocks, values, static_cast<std::size_t>(count) * sizeof(float));
}

void f64_element(const std::uint8_t* bytes, float* value) {
  *value = static_cast<float>(load<double>(bytes));
}

void dequantise_f16(const std::byte* blocks, std::int64_t count, float* values) {
  block_loops().from_f16(blocks, count, values);
}
void quantise_f16(const float* values, std::int64_t count, std::byte* blocks) {
  block_loops().to_f16(values, count, blocks);
}
void dequantise_bf16(const std::byte* blocks, std::int64_t count, float* values) {
  block_loops().from_bf16(blocks, count, values);
}
void quantise_bf16(const float* values, std::int64_t count, std::byte* blocks) {
  block_loops().to_bf16(values, count, blocks);
}

// ---- Blocks of 32: a scale, for some a minimum, and elements i and i + 16 in byte i.

void q8_0_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block);
  std::array<std::int8_t, kSmall> elements;
  std::memcpy(elements.data(), block + 2, kSmall);
  scale_groups<kSmall, kSmall>(elements.data(), &scale, values);
}

void q4_0_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block);
  std::array<std::int8_t, kSmall> elements;
  split_nibbles<16>(block + 2, elements.data());
  for (std::int8_t& element : elements) element = static_cast<std::int8_t>(element - 8);
  scale_groups<kSmall, kSmall>(elements.data(), &scale, values);
}

void q4_1_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block), minimum = load_half(block + 2);
  std::array<std::int8_t, kSmall> elements;
  split_nibbles<16>(block + 4, elements.data());
  for (int i = 0; i < kSmall; ++i)
    values[i] = scale * static_cast<float>(elements[static_cast<std::size_t>(i)]) + minimum;
}

// Elements of 5 bits: `upper` has the highest one of each.
void five_bits(const std::uint8_t* upper, const std::uint8_t* bytes, std::int8_t* elements) {
  split_nibbles<16>(bytes, elements);
  const auto bits = load<std::uint32_t>(upper);
  for (int i = 0; i < kSmall; ++i)
    elements[i] = static_cast<std::int8_t>(elements[i] | ((bits >> i) & 1u) << 4);
}

void q5_0_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block);
  std::array<std::int8_t, kSmall> elements;
  five_bits(block + 2, block + 6, elements.data());
  for (std::int8_t& element : elements) element = static_cast<std::int8_t>(element - 16);
  scale_groups<kSmall, kSmall>(elements.data(), &scale, values);
}

void q5_1_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block), minimum = load_half(block + 2);
  std::array<std::int8_t, kSmall> elements;
  five_bits(block + 4, block + 8, elements.data());
  for (int i = 0; i < kSmall; ++i)
    values[i] = scale * static_cast<float>(elements[static_cast<std::size_t>(i)]) + minimum;
}

constexpr std::int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of a float4 (E2M1), so that they are integers. GGUF's zero has no sign.
constexpr std::int8_t kFloat4Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

template <int kCount>
void look_up(const std::int8_t (&table)[16], std::int8_t* elements) {
  for (int i = 0; i < kCount; ++i) elements[i] = table[elements[i]];
}

void iq4_nl_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block);
  std::array<std::int8_t, kSmall> elements;
  split_nibbles<16>(block + 2, elements.data());
  look_up<kSmall>(kNonlinear, elements.data());
  scale_groups<kSmall, kSmall>(elements.data(), &scale, values);
}

void mxfp4_block(const std::uint8_t* block, float* values) {
  const float scale = half_of_e8m0(block[0]);
  std::array<std::int8_t, kSmall> elements;
  split_nibbles<16>(block + 1, elements.data());
  look_up<kSmall>(kFloat4Doubled, elements.data());
  scale_groups<kSmall, kSmall>(elements.data(), &scale, values);
}

// ---- Blocks of 256 with scales of their own for groups of 16 or 32.

// Elements of 2 bits: in each half of the block, byte i holds elements i, i + 32, i + 64, i + 96.
void two_bits(const std::uint8_t* bytes, std::int8_t* elements) {
  for (int half = 0; half < 2; ++half)
    for (int pair = 0; pair < 4; ++pair)
      for (int i = 0; i < 32; ++i)
        elements[half * 128 + pair * 32 + i] =
            static_cast<std::int8_t>((bytes[half * 32 + i] >> (2 * pair)) & 3);
}

void q2_k_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block + 80), minimum = load_half(block + 82);
  std::array<float, 16> factors, minima;
  for (std::size_t g = 0; g < 16; ++g) {
    factors[g] = scale * static_cast<float>(block[g] & 15);
    minima[g] = minimum * static_cast<float>(block[g] >> 4);
  }
  std::array<std::int8_t, kSuper> elements;
  two_bits(block + 16, elements.data());
  scale_and_shift_groups<kSuper, 16>(elements.data(), factors.data(), minima.data(), values);
}

void q3_k_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block + 108);
  const std::uint8_t* scales = block + 96;  // 16 of 6 bits: the lower four, then the upper two
  std::array<float, 16> factors;
  for (std::size_t g = 0; g < 16; ++g) {
    const int lower = (scales[g % 8] >> (g < 8 ? 0 : 4)) & 15;
    const int upper = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
    factors[g] = scale * static_cast<float>((lower | upper << 4) - 32);
  }
  std::array<std::int8_t, kSuper> elements;
  two_bits(block + 32, elements.data());
  // A bit that is not set subtracts 4.
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; ++i) {
      std::int8_t& element = elements[static_cast<std::size_t>(group * 32 + i)];
      element = static_cast<std::int8_t>(element + ((block[i] >> group) & 1) * 4 - 4);
    }
  scale_groups<kSuper, 16>(elements.data(), factors.data(), values);
}

// Factors and minima of the 8 groups of Q4_K and Q5_K, from 12 bytes of 6-bit numbers.
void unpack_factors(const std::uint8_t* block, float* factors, float* minima) {
  const float scale = load_half(block), minimum = load_half(block + 2);
  const std::uint8_t* packed = block + 4;
  for (int g = 0; g < 4; ++g) {
    const std::uint8_t first = packed[g], second = packed[4 + g], third = packed[8 + g];
    factors[g] = scale * static_cast<float>(first & 63);
    minima[g] = minimum * static_cast<float>(second & 63);
    factors[4 + g] = scale * static_cast<float>((third & 15) | (first >> 6) << 4);
    minima[4 + g] = minimum * static_cast<float>((third >> 4) | (second >> 6) << 4);
  }
}

// Byte i of 32 holds elements i and i + 32.
void four_bits(const std::uint8_t* bytes, std::int8_t* elements) {
  for (int pair = 0; pair < 4; ++pair) split_nibbles<32>(bytes + pair * 32, elements + pair * 64);
}

void q4_k_block(const std::uint8_t* block, float* values) {
  std::array<float, 8> factors, minima;
  unpack_factors(block, factors.data(), minima.data());
  std::array<std::int8_t, kSuper> elements;
  four_bits(block + 16, elements.data());
  scale_and_shift_groups<kSuper, 32>(elements.data(), factors.data(), minima.data(), values);
}

void q5_k_block(const std::uint8_t* block, float* values) {
  std::array<float, 8> factors, minima;
  unpack_factors(block, factors.data(), minima.data());
  std::array<std::int8_t, kSuper> elements;
  four_bits(block + 48, elements.data());
  const std::uint8_t* upper = block + 16;
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; ++i) {
      std::int8_t& element = elements[static_cast<std::size_t>(group * 32 + i)];
      element = static_cast<std::int8_t>(element | ((upper[i] >> group) & 1) << 4);
    }
  scale_and_shift_groups<kSuper, 32>(elements.data(), factors.data(), minima.data(), values);
}

void q6_k_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block + 208);
  std::array<float, 16> factors;
  for (std::size_t g = 0; g < 16; ++g)
    factors[g] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + g]));
  std::array<std::int8_t, kSuper> elements;
  for (int half = 0; half < 2; ++half)
    split_nibbles<64>(block + half * 64, elements.data() + half * 128);
  const std::uint8_t* upper = block + 128;
  for (int half = 0; half < 2; ++half)
    for (int pair = 0; pair < 4; ++pair)
      for (int i = 0; i < 32; ++i) {
        std::int8_t& element = elements[static_cast<std::size_t>(half * 128 + pair * 32 + i)];
        const int bits = (upper[half * 32 + i] >> (2 * pair)) & 3;
        element = static_cast<std::int8_t>((element | bits << 4) - 32);
      }
  scale_groups<kSuper, 16>(elements.data(), factors.data(), values);
}

void iq4_xs_block(const std::uint8_t* block, float* values) {
  const float scale = load_half(block);
  const auto upper = load<std::uint16_t>(block + 2);
  std::array<float, 8> factors;
  std::array<std::int8_t, kSuper> elements;
  for (int g = 0; g < 8; ++g) {
    const int lower = (block[4 + g / 2] >> (4 * (g % 2))) & 15;
    const int bits = (upper >> (2 * g)) & 3;
    factors[static_cast<std::size_t>(g)] = scale * static_cast<float>((lower | bits << 4) - 32);
    split_nibbles<16>(block + 8 + g * 16, elements.data() + g * 32);
  }
  look_up<kSuper>(kNonlinear, elements.data());
  scale_groups<kSuper, 32>(elements.data(), factors.data(), values);
}

// ---- Quantisation.

// By bits, which order magnitudes and whose largest is found in a loop that vectorises.
float largest_magnitude(const float* values) {
  std::int32_t largest = 0;
  for (int i = 0; i < kSmall; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7FFFFFFF);
  return std::bit_cast<float>(largest);
}

void quantise_q8_0(const float* values, std::int64_t num_blocks, std::byte* blocks) {
  block_loops().to_q8_0(values, num_blocks, blocks);
}
void quantise_q4_0(const float* values, std::int64_t num_blocks, std::byte* blocks) {
  block_loops().to_q4_0(values, num_blocks, blocks);
}

// The scale, and a byte for values (i, i + 16), or for neighbours (2i, 2i + 1).
template <bool kNeighbours>
void to_mxfp4(const float* values, std::uint8_t* scale, std::uint8_t* bytes) {
  using Encoder = GridElements<GridFormat::kMxfp4>;
  *scale = e8m0_of(largest_magnitude(values));
  const float half = half_of_e8m0(*scale);
  for (int i = 0; i < 16; ++i) {
    const int lower = kNeighbours ? 2 * i : i, upper = kNeighbours ? 2 * i + 1 : 16 + i;
    bytes[i] = static_cast<std::uint8_t>(Encoder::element_of(values[lower], half) |
                                         Encoder::element_of(values[upper], half) << 4);
  }
}

void to_mxfp4_block(const float* values, std::uint8_t* block) {
  to_mxfp4<false>(values, block, block + 1);
}

template <int kBytes, void (*kFrom)(const std::uint8_t*, float*)>
constexpr BlockType small_type(std::string_view name, std::uint32_t id,
                               decltype(BlockType::quantise) quantise = nullptr) {
  return {name, id, kSmall, kBytes, dequantise_each<kSmall, kBytes, kFrom>, quantise};
}

template <int kBytes, void (*kFrom)(const std::uint8_t*, float*)>
constexpr BlockType super_type(std::string_view name, std::uint32_t id) {
  return {name, id, kSuper, kBytes, dequantise_each<kSuper, kBytes, kFrom>, nullptr};
}

constexpr BlockType kBlockTypes[] = {
    {"F32", 0, 1, 4, dequantise_f32, quantise_f32},
    {"F16", 1, 1, 2, dequantise_f16, quantise_f16},
    small_type<18, q4_0_block>("Q4_0", 2, quantise_q4_0),
    small_type<20, q4_1_block>("Q4_1", 3),
    small_type<22, q5_0_block>("Q5_0", 6),
    small_type<24, q5_1_block>("Q5_1", 7),
    small_type<34, q8_0_block>("Q8_0", 8, quantise_q8_0),
    {"Q8_1", 9, 32, 40},
    super_type<84, q2_k_block>("Q2_K", 10),
    super_type<110, q3_k_block>("Q3_K", 11),
    super_type<144, q4_k_block>("Q4_K", 12),
    super_type<176, q5_k_block>("Q5_K", 13),
    super_type<210, q6_k_block>("Q6_K", 14),
    {"Q8_K", 15, 256, 292},
    {"IQ2_XXS", 16, 256, 66},
    {"IQ2_XS", 17, 256, 74},
    {"IQ3_XXS", 18, 256, 98},
    {"IQ1_S", 19, 256, 50},
    small_type<18, iq4_nl_block>("IQ4_NL", 20),
    {"IQ3_S", 21, 256, 110},
    {"IQ2_S", 22, 256, 82},
    super_type<136, iq4_xs_block>("IQ4_XS", 23),
    {"I8", 24, 1, 1},
    {"I16", 25, 1, 2},
    {"I32", 26, 1, 4},
    {"I64", 27, 1, 8},
    {"F64", 28, 1, 8, kElementwise<8, f64_element>},
    {"IQ1_M", 29, 256, 56},
    {"BF16", 30, 1, 2, dequantise_bf16, quantise_bf16},
    {"TQ1_0", 34, 256, 54},
    {"TQ2_0", 35, 256, 66},
    small_type<17, mxfp4_block>("MXFP4", 39, quantise_each<kSmall, 17, to_mxfp4_block>),
    {"NVFP4", 40, 64, 36},
    {"Q1_0", 41, 128, 18},
};

// The blocks of so many values.
std::int64_t blocks_of(const BlockType& type, std::size_t num_bytes, std::size_t num_values) {
  const auto blocks = static_cast<std::int64_t>(num_bytes) / type.bytes;
  ANABATIC_CHECK(blocks * type.bytes == static_cast<std::int64_t>(num_bytes) &&
                     blocks * type.elements == static_cast<std::int64_t>(num_values),
                 "[block types] {} bytes of {} for {} values", num_bytes, type.name, num_values);
  return blocks;
}

void require_pairs(std::size_t num_bytes, std::size_t num_scales, std::size_t num_values) {
  ANABATIC_CHECK(num_bytes == 16 * num_scales && num_values == 32 * num_scales,
                 "[block types] {} bytes of MXFP4 and {} scales for {} values", num_bytes,
                 num_scales, num_values);
}

}  // namespace

std::span<const BlockType> block_types() { return kBlockTypes; }

const BlockType* find_block_type(std::uint32_t id) {
  const auto* type = std::ranges::lower_bound(kBlockTypes, id, {}, &BlockType::id);
  return type == std::end(kBlockTypes) || type->id != id ? nullptr : type;
}

const BlockType* find_block_type(std::string_view name) {
  const auto* type = std::ranges::find(kBlockTypes, name, &BlockType::name);
  return type == std::end(kBlockTypes) ? nullptr : type;
}

void dequantise(const BlockType& type, std::span<const std::byte> blocks, std::span<float> values) {
  ANABATIC_CHECK(type.dequantise != nullptr, "[block types] {} is not read", type.name);
  type.dequantise(blocks.data(), blocks_of(type, blocks.size(), values.size()), values.data());
}

void quantise(const BlockType& type, std::span<const float> values, std::span<std::byte> blocks) {
  ANABATIC_CHECK(type.quantise != nullptr, "[block types] {} is not written", type.name);
  type.quantise(values.data(), blocks_of(type, blocks.size(), values.size()), blocks.data());
}

void dequantise_mxfp4_pairs(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                            std::span<float> values) {
  require_pairs(blocks.size(), scales.size(), values.size());
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(blocks.data());
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const auto scale = std::to_integer<std::uint8_t>(scales[group]);
    for (std::size_t i = 0; i < 16; ++i) {
      const std::uint8_t pair = bytes[group * 16 + i];
      values[group * 32 + 2 * i] = float4_value(pair & 15u, scale);
      values[group * 32 + 2 * i + 1] = float4_value(pair >> 4, scale);
    }
  }
}

void quantise_mxfp4_pairs(std::span<const float> values, std::span<std::byte> blocks,
                          std::span<std::byte> scales) {
  require_pairs(blocks.size(), scales.size(), values.size());
  auto* bytes = reinterpret_cast<std::uint8_t*>(blocks.data());
  auto* exponents = reinterpret_cast<std::uint8_t*>(scales.data());
  for (std::size_t group = 0; group < scales.size(); ++group)
    to_mxfp4<true>(values.data() + group * 32, exponents + group, bytes + group * 16);
}

float f8_e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7Fu, sign = std::uint32_t{bits & 0x80u} << 24;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const std::uint32_t finite =
      magnitude < 8 ? std::bit_cast<std::uint32_t>(subnormal) : (magnitude << 20) + (120u << 23);
  return std::bit_cast<float>(sign | (magnitude == 0x7F ? 0x7FC00000u : finite));
}

void dequantise_f8_e4m3(std::span<const std::byte> elements, std::int64_t columns,
                        std::int64_t first_row, std::span<const float> scales,
                        std::span<float> values) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t rows = columns > 0 ? static_cast<std::int64_t>(values.size()) / columns : 0;
  const std::int64_t blocks_a_row = ceil_div(columns, kBlock);
  ANABATIC_CHECK(elements.size() == values.size() &&
                     rows * columns == static_cast<std::int64_t>(values.size()) &&
                     ceil_div(first_row + rows, kBlock) * blocks_a_row <=
                         static_cast<std::int64_t>(scales.size()),
                 "[block types] {} bytes of F8_E4M3 and {} scales for {} rows of {} from row {}",
                 elements.size(), scales.size(), rows, columns, first_row);
  static const std::array<float, 256> table = [] {
    std::array<float, 256> all;
    for (std::size_t bits = 0; bits < 256; ++bits)
      all[bits] = f8_e4m3_to_float(static_cast<std::uint8_t>(bits));
    return all;
  }();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(elements.data());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t block = 0; block < blocks_a_row; ++block) {
      const float scale =
          scales[static_cast<std::size_t>((first_row + row) / kBlock * blocks_a_row + block)];
      const std::int64_t end = std::min((block + 1) * kBlock, columns);
      for (std::int64_t column = block * kBlock; column < end; ++column) {
        const auto i = static_cast<std::size_t>(row * columns + column);
        values[i] = table[bytes[i]] * scale;
      }
    }
}

}  // namespace anabatic::io
