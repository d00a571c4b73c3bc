// SPDX-License-Identifier: Apache-2.0
#include "tensor/dynamic_map.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/philox.h"
#include "support/tolerance.h"

namespace anabatic {
namespace {

float absolute_of(std::uint64_t i) {  // log-uniform over what the map tells apart, and below
  return static_cast<float>(std::exp(-20.0 * random_uniform(3, 1, i)));
}

template <bool kSigned>
const DynamicMap& map_of() {
  return kSigned ? signed_map() : unsigned_map();
}

// By looking at every entry; the distance to the nearest one.
template <bool kSigned>
double nearest_distance(double x) {
  double nearest = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 256; ++code) {
    if (!kSigned && code == 0 && x > 0) continue;
    nearest =
        std::min(nearest, std::abs(map_of<kSigned>().values[static_cast<std::size_t>(code)] - x));
  }
  return nearest;
}

TEST(DynamicMap, HasDistinctEntriesOfWhichZeroIsZero) {
  for (const DynamicMap* map : {&signed_map(), &unsigned_map()}) {
    EXPECT_EQ(std::set<float>(map->values.begin(), map->values.end()).size(), 256u);
    EXPECT_EQ(map->values[0], 0.0f);
  }
  EXPECT_EQ(signed_map().values[128], 1.0f);
  EXPECT_EQ(unsigned_map().values[255], 1.0f);
  EXPECT_TRUE(std::is_sorted(unsigned_map().values.begin(), unsigned_map().values.end()));
  for (std::size_t code = 1; code < 128; ++code)
    EXPECT_EQ(signed_map().values[code], -signed_map().values[256 - code]);
}

template <bool kSigned>
void expect_entries_keep_their_codes() {
  for (int code = 0; code < 256; ++code) {
    const float value = dequantize<kSigned>(static_cast<std::uint8_t>(code), 1.0f);
    EXPECT_EQ(quantize<kSigned>(value, 1.0f), code) << value;
  }
}

TEST(DynamicMap, KeepsTheCodesOfItsOwnEntries) {
  expect_entries_keep_their_codes<true>();
  expect_entries_keep_their_codes<false>();
}

template <bool kSigned>
void expect_nearest() {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float x = kSigned && i % 2 == 1 ? -absolute_of(i) : absolute_of(i);
    const double got = dequantize<kSigned>(quantize<kSigned>(x, 1.0f), 1.0f);
    const double error = std::abs(got - static_cast<double>(x));
    EXPECT_LE(error, nearest_distance<kSigned>(x) +
                         testing::agreement_tolerance(0, DType::kFloat32) * std::abs(x))
        << x;
  }
}

TEST(DynamicMap, RoundsToTheNearestEntry) {
  expect_nearest<true>();
  expect_nearest<false>();
}

template <bool kSigned>
void expect_bound() {
  for (const float scale : {1.0f, 3.7e-5f, 1.3e8f})
    for (std::uint64_t i = 0; i < 20000; ++i) {
      const float y = kSigned && i % 2 == 1 ? -absolute_of(i) : absolute_of(i);
      const float x = y * scale;
      const double got = dequantize<kSigned>(quantize<kSigned>(x, inverse_scale(scale)), scale);
      EXPECT_LE(std::abs(got - static_cast<double>(x)),
                testing::dynamic_map_tolerance(kSigned, x, scale))
          << x << " of " << scale;
    }
}

TEST(DynamicMap, KeepsItsBoundInEveryDecade) {
  expect_bound<true>();
  expect_bound<false>();
}

TEST(DynamicMap, GivesZeroOnlyForZeroWhereItIsUnsigned) {
  EXPECT_EQ(quantize<false>(0.0f, 1.0f), 0);
  EXPECT_EQ(quantize<false>(1e-30f, 1.0f), 1);
  EXPECT_EQ(quantize<true>(1e-30f, 1.0f), 0);
  EXPECT_EQ(quantize<true>(-1e-30f, 1.0f), 0);
}

TEST(DynamicMap, TakesAnyFloat) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float scale : {0.0f, 1e-40f, 0x1.0p-126f, 1.0f, 0x1.0p126f, infinity, nan})
    for (const float x : {0.0f, 1e-40f, 1.0f, -1.0f, infinity, -infinity, nan}) {
      const float inverse = inverse_scale(scale);
      EXPECT_LE(quantize<true>(x, inverse), 255);
      EXPECT_LE(quantize<false>(x, inverse), 255);
    }
  EXPECT_EQ(quantize<true>(0x1.0p126f, inverse_scale(0x1.0p126f)), 128);
  EXPECT_EQ(quantize<true>(1e-40f, inverse_scale(1e-40f)), 0);
}

TEST(DynamicMap, HasAScaleForEveryTile) {
  const auto scales_of = [](const char* text) {
    return to_string(scales_type(
        quantized(parse_tensor_type(text), moment_format(ElementMap::kDynamicUnsigned))));
  };
  EXPECT_EQ(scales_of("f32[33,16]@panels"), "f32[3,1]");
  EXPECT_EQ(scales_of("f32[5,0,17]"), "f32[5,0,2]");
  EXPECT_ANY_THROW(scales_of("f32[5]"));
}

}  // namespace
}  // namespace anabatic
