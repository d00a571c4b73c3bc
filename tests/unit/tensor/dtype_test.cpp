// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace anabatic {
namespace {

TEST(DType, TextRoundTripsAndSizesAreRight) {
  const struct {
    DType dtype;
    const char* text;
    std::int64_t bytes;
  } rows[] = {{DType::kFloat64, "f64", 8},   {DType::kFloat32, "f32", 4},
              {DType::kBFloat16, "bf16", 2}, {DType::kFloat16, "f16", 2},
              {DType::kInt8, "i8", 1},       {DType::kUInt8, "u8", 1},
              {DType::kUInt16, "u16", 2},    {DType::kInt32, "i32", 4},
              {DType::kInt64, "i64", 8},     {DType::kBool, "bool", 1}};
  for (const auto& row : rows) {
    EXPECT_EQ(to_string(row.dtype), row.text);
    EXPECT_EQ(dtype_from_string(row.text), row.dtype);
    EXPECT_EQ(size_bytes(row.dtype), row.bytes);
  }
  EXPECT_EQ(dtype_from_string("fp32"), std::nullopt);
}

TEST(BFloat16, ExactValuesStayForAllBits) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(wide))));
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16_half_away(wide))));
    } else {
      EXPECT_EQ(to_bfloat16(wide).bits, value.bits);
      EXPECT_EQ(to_bfloat16_half_away(wide).bits, value.bits);
    }
  }
}

TEST(BFloat16, TiesGoToEvenOrAwayFromZero) {
  // 1 + 2^-8 lies half way between 1 (even) and 1 + 2^-7; 1 + 3·2^-8 between 1 + 2^-7 and
  // 1 + 2^-6 (even).
  EXPECT_EQ(to_bfloat16(0x1.01p0f).bits, 0x3F80);
  EXPECT_EQ(to_bfloat16(0x1.03p0f).bits, 0x3F82);
  EXPECT_EQ(to_bfloat16_half_away(0x1.01p0f).bits, 0x3F81);
  EXPECT_EQ(to_bfloat16_half_away(-0x1.01p0f).bits, 0xBF81);
  // One ULP of fp32 next to the tie goes to the nearer one in both.
  for (const auto round : {to_bfloat16, to_bfloat16_half_away}) {
    EXPECT_EQ(round(0x1.010002p0f).bits, 0x3F81);
    EXPECT_EQ(round(0x1.00fffep0f).bits, 0x3F80);
  }
}

TEST(BFloat16, LimitsRoundToInfinityAndNanNeverDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(to_bfloat16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(to_float(to_bfloat16(-kInfinity)), -kInfinity);
  // A NaN whose payload lies in the lower half alone.
  const float nan = std::bit_cast<float>(0x7F800001u);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(nan))));
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16_half_away(nan))));
}

}  // namespace
}  // namespace anabatic
