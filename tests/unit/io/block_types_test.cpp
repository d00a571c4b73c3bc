// SPDX-License-Identifier: Apache-2.0
// By hand, and that no bytes lead astray; parity_block_types.py compares every type with gguf.
#include "io/block_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "io/block_loops.h"
#include "tensor/dtype.h"
#include "tensor/half.h"

namespace anabatic::io {
namespace {

using ::testing::Each;

std::vector<std::byte> bytes_of(std::initializer_list<int> list) {
  std::vector<std::byte> bytes;
  for (const int byte : list) bytes.push_back(static_cast<std::byte>(byte));
  return bytes;
}

std::vector<float> values_of(const char* type, std::span<const std::byte> blocks) {
  const BlockType& found = *find_block_type(type);
  std::vector<float> values(blocks.size() / static_cast<std::size_t>(found.bytes) *
                            static_cast<std::size_t>(found.elements));
  dequantise(found, blocks, values);
  return values;
}

std::vector<std::byte> blocks_of(const char* type, std::span<const float> values) {
  const BlockType& found = *find_block_type(type);
  std::vector<std::byte> blocks(values.size() / static_cast<std::size_t>(found.elements) *
                                static_cast<std::size_t>(found.bytes));
  quantise(found, values, blocks);
  return blocks;
}

TEST(BlockTypes, AreFoundByIdAndName) {
  std::int64_t last = -1;
  for (const BlockType& type : block_types()) {
    EXPECT_GT(type.id, last);
    last = type.id;
    EXPECT_EQ(find_block_type(type.id), &type);
    EXPECT_EQ(find_block_type(type.name), &type);
    EXPECT_GT(type.bytes, 0);
  }
  EXPECT_EQ(find_block_type(4), nullptr);
  EXPECT_EQ(find_block_type(1000), nullptr);
  EXPECT_EQ(find_block_type("Q9"), nullptr);
}

TEST(BlockTypes, AnyBytesAreRead) {
  for (const BlockType& type : block_types()) {
    if (type.dequantise == nullptr) continue;
    const std::int64_t count = 64;
    const auto size = static_cast<std::size_t>(count * type.bytes);
    std::vector<std::byte> bytes(size + 1);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(random_below(7, type.id, i, 256));
    std::vector<float> values(static_cast<std::size_t>(count * type.elements), -1.0f);
    dequantise(type, std::span(bytes).subspan(1, size), values);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    dequantise(type, std::span(bytes).subspan(1, size), values);
    EXPECT_THAT(values, Each(0.0f)) << type.name;
  }
}

TEST(BlockTypes, AnyValuesAreWritten) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> edges{kInfinity, -kInfinity, std::nanf(""), 3e38f, -3e38f,
                                 1e-40f,    -1e-40f,    1e-38f,        0.0f,  1.0f};
  for (const BlockType& type : block_types()) {
    if (type.quantise == nullptr) continue;
    for (const float edge : edges) {
      std::vector<float> values(32, 0.5f * edge);
      values[7] = edge;
      values[9] = -1.0f;
      std::vector<std::byte> blocks(32 / static_cast<std::size_t>(type.elements) *
                                    static_cast<std::size_t>(type.bytes));
      quantise(type, values, blocks);
      dequantise(type, blocks, values);
      const bool are_finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
      EXPECT_TRUE(are_finite || !(std::abs(edge) <= 1.0f)) << type.name << " of " << edge;
    }
  }
}

TEST(BlockTypes, ElementsOf4BitsAre16Apart) {
  // A scale of 0.5, then bytes of two elements.
  std::vector<std::byte> block = bytes_of({0x00, 0x38, 0x9A});
  block.resize(18, std::byte{0x88});
  std::vector<float> values = values_of("Q4_0", block);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[16], 0.5f);
  EXPECT_EQ(values[1], 0.0f);
  block.insert(block.begin() + 2, {std::byte{0x00}, std::byte{0xC0}});  // a minimum of -2
  values = values_of("Q4_1", block);
  EXPECT_EQ(values[0], 3.0f);
  EXPECT_EQ(values[16], 2.5f);
}

TEST(BlockTypes, PairsOfMxfp4AreNextToEachOtherInHuggingFacesOrder) {
  std::vector<std::byte> block = bytes_of({128, 0x7A});  // 2^1; -1 below, 6 above
  block.resize(17);
  const std::vector<float> apart = values_of("MXFP4", block);
  EXPECT_EQ(apart[0], -2.0f);
  EXPECT_EQ(apart[16], 12.0f);
  std::vector<float> pairs(32);
  dequantise_mxfp4_pairs(std::span(block).subspan(1), std::span(block).first(1), pairs);
  EXPECT_EQ(pairs[0], -2.0f);
  EXPECT_EQ(pairs[1], 12.0f);
}

TEST(BlockTypes, PairsOfMxfp4HaveTheScalesAndElementsOfTheType) {
  std::vector<float> values(32), pairs(32);
  for (int i = 0; i < 32; ++i)
    values[static_cast<std::size_t>(i)] = std::sin(1.7f * static_cast<float>(i)) * 0.3f;
  std::vector<std::byte> blocks(16), scales(1);
  quantise_mxfp4_pairs(values, blocks, scales);
  const std::vector<std::byte> block = blocks_of("MXFP4", values);
  EXPECT_EQ(scales[0], block[0]);
  dequantise_mxfp4_pairs(blocks, scales, pairs);
  EXPECT_EQ(pairs, values_of("MXFP4", block));
}

// Rows of blocks: normal values, ties of both types, any bits, and values at the edges.
std::vector<float> values_for_loops() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kEdges[] = {0.0f,   -0.0f,    1e-45f,   -1e-40f,   1e-38f,     3e38f,
                              -3e38f, 65504.0f, 65520.0f, kInfinity, -kInfinity, NAN};
  std::vector<float> values;
  for (std::uint64_t block = 0; block < 997; ++block) {
    const auto kind = block % 6;
    for (std::uint64_t i = 0; i < 32; ++i) {
      const auto bits =
          static_cast<std::uint32_t>(random_below(3, block, i, std::uint64_t{1} << 32));
      const float normal = static_cast<float>(random_normal(5, block, i));
      float value = normal;
      if (kind == 1) value = std::bit_cast<float>(bits);
      if (kind == 2) value = kEdges[bits % std::size(kEdges)];
      if (kind == 3) value = bits % 8 == 0 ? kEdges[bits / 8 % std::size(kEdges)] : normal;
      if (kind == 4) value = 0.5f * static_cast<float>(static_cast<int>(bits % 511) - 255);
      if (kind == 5) value = std::bit_cast<float>(bits & 0x807FFFFFu);  // subnormal
      values.push_back(value);
    }
    if (kind == 4) values.back() = 127.0f;
    if (block % 60 == 0) std::fill(values.end() - 32, values.end(), 0.0f);
  }
  return values;
}

TEST(BlockLoops, GiveEqualBitsWithEveryInstructionSet) {
  std::vector<const BlockLoops*> variants;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) variants.push_back(&kAvx2Loops);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    variants.push_back(&kAvx512Loops);
#endif
  const std::vector<float> values = values_for_loops();
  const auto count = static_cast<std::int64_t>(values.size());
  const auto written = [&](BlockLoops::To loop, std::int64_t num_blocks, std::size_t bytes) {
    std::vector<std::byte> blocks(bytes * static_cast<std::size_t>(num_blocks) + 1);
    loop(values.data(), num_blocks, blocks.data() + 1);  // not aligned
    return blocks;
  };
  std::vector<std::byte> halves;
  for (int bits = 0; bits < 1 << 16; ++bits)
    for (const int byte : {bits & 255, bits >> 8}) halves.push_back(static_cast<std::byte>(byte));
  const auto read = [&](BlockLoops::From loop) {
    std::vector<std::uint32_t> found(std::size_t{1} << 16);
    loop(halves.data(), std::ssize(found), reinterpret_cast<float*>(found.data()));
    return found;
  };
  for (const BlockLoops* loops : variants) {
    EXPECT_EQ(written(loops->to_f16, count, 2), written(kPortableLoops.to_f16, count, 2));
    EXPECT_EQ(written(loops->to_bf16, count, 2), written(kPortableLoops.to_bf16, count, 2));
    EXPECT_EQ(written(loops->to_q8_0, count / 32, 34),
              written(kPortableLoops.to_q8_0, count / 32, 34));
    EXPECT_EQ(written(loops->to_q4_0, count / 32, 18),
              written(kPortableLoops.to_q4_0, count / 32, 18));
    EXPECT_EQ(read(loops->from_f16), read(kPortableLoops.from_f16));
    EXPECT_EQ(read(loops->from_bf16), read(kPortableLoops.from_bf16));
    EXPECT_EQ(loops->largest_finite(values.data(), count),
              kPortableLoops.largest_finite(values.data(), count));
  }
  // The portable loops against the functions of one element.
  const std::vector<std::byte> f16 = written(kPortableLoops.to_f16, count, 2);
  const std::vector<std::byte> bf16 = written(kPortableLoops.to_bf16, count, 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = float_to_half(values[i]), bits = to_bfloat16(values[i]).bits;
    ASSERT_EQ(std::memcmp(f16.data() + 1 + 2 * i, &half, 2), 0) << values[i];
    ASSERT_EQ(std::memcmp(bf16.data() + 1 + 2 * i, &bits, 2), 0) << values[i];
  }
}

TEST(BlockTypes, WholeNumbersSurviveEightBits) {
  std::vector<float> values(32);
  for (int i = 0; i < 32; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>(8 * i - 121);
  values[5] = -127.0f;
  EXPECT_EQ(values_of("Q8_0", blocks_of("Q8_0", values)), values);
}

TEST(BlockTypes, Mxfp4RoundsTiesToTheSmallerMagnitude) {
  std::vector<float> values(32);
  values[0] = 6.0f;  // the scale is 1
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float wanted[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f};
  for (std::size_t i = 0; i < 7; ++i) {
    values[1 + i] = ties[i];
    values[8 + i] = -ties[i];
    values[15 + i] = std::nextafter(ties[i], 10.0f);
  }
  const std::vector<float> got = values_of("MXFP4", blocks_of("MXFP4", values));
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(got[1 + i], wanted[i]);
    EXPECT_EQ(got[8 + i], -wanted[i]);
    EXPECT_GT(got[15 + i], wanted[i]);
  }
}

TEST(BlockTypes, Float8HasScalesOf128Rows) {
  EXPECT_EQ(f8_e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(f8_e4m3_to_float(0x7E), 448.0f);
  EXPECT_EQ(f8_e4m3_to_float(0x81), -0x1p-9f);
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0x7F)));
  // 130 rows and columns of 1: four blocks.
  const std::vector<float> scales{1, 2, 3, 4};
  const std::vector<std::byte> ones(2 * 130, std::byte{0x38});
  std::vector<float> values(2 * 130);
  dequantise_f8_e4m3(ones, 130, 127, scales, values);
  EXPECT_EQ(values[127], 1.0f);
  EXPECT_EQ(values[128], 2.0f);
  EXPECT_EQ(values[130], 3.0f);
  EXPECT_EQ(values[259], 4.0f);
}

}  // namespace
}  // namespace anabatic::io
