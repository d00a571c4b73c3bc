// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_type.h"

#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "tensor/panels.h"

namespace anabatic {
namespace {

TEST(TensorType, TextRoundTrips) {
  for (const char* text : {"f32[]", "bf16[4096,512]@panel16x2", "i32[0]", "f64[8,512,3]",
                           "bool[1,2]", "u8[9223372036854775807]"})
    EXPECT_EQ(to_string(parse_tensor_type(text)), text);
  EXPECT_EQ(parse_tensor_type("f32[4,8]"), tensor_type(DType::kFloat32, {4, 8}));
}

TEST(TensorType, ParserNamesWhatItRefuses) {
  for (const char* text :
       {"", "f32", "f32[", "f32]", "f32][", "f33[4]", "[4]", "f32[-1]", "f32[4,]", "f32[,4]",
        "f32[x]", "f32[<=4]", "f32[n<=4]", "f32[4]@", "f32[4]x", "f32[9223372036854775808]"}) {
    try {
      parse_tensor_type(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("'") + text), std::string::npos)
          << error.what();
    }
  }
}

TEST(TensorType, CountsElementsAndBytes) {
  EXPECT_EQ(tensor_type(DType::kFloat32, {}).num_elements(), 1);
  EXPECT_EQ(tensor_type(DType::kBFloat16, {4, 0, 8}).num_bytes(), 0);
  EXPECT_EQ(tensor_type(DType::kBFloat16, {4, 8}).num_bytes(), 64);
  EXPECT_EQ(parse_tensor_type("f64[10,2]").num_bytes(), 160);
}

TEST(TensorType, RefusesCountsThatOverflow) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  EXPECT_EQ(tensor_type(DType::kInt8, {kHuge, kHuge}).num_bytes(), std::int64_t{1} << 62);
  EXPECT_THROW(tensor_type(DType::kInt8, {kHuge, kHuge, 2}).num_elements(), InvalidArgument);
  EXPECT_THROW(tensor_type(DType::kFloat64, {kHuge, kHuge}).num_bytes(), InvalidArgument);
}

TEST(TensorType, NegativeAxesCountFromTheEnd) {
  const TensorType type = parse_tensor_type("f32[7,3]");
  EXPECT_EQ(type.dim(0), 7);
  EXPECT_EQ(type.dim(-1), 3);
  EXPECT_THROW(type.dim(2), InternalError);
  EXPECT_THROW(type.dim(-3), InternalError);
}

TEST(TensorType, LayoutsArePartOfTheType) {
  EXPECT_NE(parse_tensor_type("f32[4]@packed"), parse_tensor_type("f32[4]"));
}

TEST(TensorType, OfMxfp4HasTwoElementsAByte) {
  const TensorType type = parse_tensor_type("e2m1_e8m0_1x32[3,7,320]");
  EXPECT_EQ(to_string(type), "e2m1_e8m0_1x32[3,7,320]");
  EXPECT_EQ(type, quantized(tensor_type(DType::kBFloat16, {3, 7, 320}), mxfp4_format()));
  EXPECT_EQ(type.num_elements(), 6720);
  EXPECT_EQ(to_string(elements_type(type)), "u8[3,7,160]");
  EXPECT_EQ(to_string(scales_type(type)), "u8[3,7,10]");
  EXPECT_EQ(scales_offset(type), 3392);  // 3,360 bytes, to 64
  EXPECT_EQ(type.num_bytes(), 3392 + 210);
  EXPECT_EQ(type.value_dtype(), DType::kBFloat16);
  EXPECT_THROW(parse_tensor_type("e2m1_e8m0_1x32[7,48]"), InvalidArgument);
  for (const char* text : {"e2m1_bf16_1x32", "e2m1_e8m0_1x16", "i8_e8m0_1x32", "i8_u8_1x32"})
    EXPECT_EQ(block_format_from_string(text), std::nullopt) << text;
}

TEST(TensorType, OfABlockFormatHoldsElementsAndScales) {
  const TensorType type = parse_tensor_type("i8_bf16_1x128[7,300]");
  EXPECT_EQ(to_string(type), "i8_bf16_1x128[7,300]");
  EXPECT_EQ(type, quantized(parse_tensor_type("f32[7,300]"),
                            {.scale = DType::kBFloat16, .rows = 1, .columns = 128}));
  EXPECT_EQ(to_string(elements_type(type)), "i8[7,300]");
  EXPECT_EQ(to_string(scales_type(type)), "bf16[7,3]");
  EXPECT_EQ(scales_offset(type), 2112);  // 2,100 elements, to 64 bytes
  EXPECT_EQ(type.num_bytes(), 2112 + 7 * 3 * 2);
  const TensorType panels = parse_tensor_type("udynamic8_f32_16x16[3,17,33]@panels");
  EXPECT_EQ(panels.dtype, DType::kUInt8);
  EXPECT_EQ(to_string(panels), "udynamic8_f32_16x16[3,17,33]@panels");
  EXPECT_EQ(to_string(scales_type(panels)), "f32[3,2,3]");
  EXPECT_EQ(panels.num_bytes(), 3200 + 3 * 2 * 3 * 4);
  EXPECT_EQ(parse_tensor_type("dynamic8_f32_16x16[0,5]").num_bytes(), 0);
  EXPECT_NE(type, elements_type(type));
  EXPECT_NE(parse_tensor_type("dynamic8_f32_16x16[4,4]"),
            parse_tensor_type("udynamic8_f32_16x16[4,4]"));
}

TEST(TensorType, Int8PanelsHoldScalesOfTilesAndCompensations) {
  const TensorType plain = tensor_type(DType::kFloat32, {3, 200, 130});
  TensorType type = quantized(plain, int8_tile_format());
  EXPECT_EQ(to_string(type), "i8_bf16_128x128[3,200,130]");
  EXPECT_FALSE(is_int8_panels(type));
  EXPECT_EQ(type.num_bytes(), 3 * 200 * 130 + 16 + 3 * 2 * 2 * 2);  // a multiple of 64
  EXPECT_THROW(compensations_offset(type), InternalError);

  // Panels of 16 lines, words of 4 along the depth.
  type.layout = panels_layout(false);
  EXPECT_TRUE(is_int8_panels(type));
  EXPECT_EQ(element_bytes(type), 3 * 13 * 33 * 64);
  EXPECT_EQ(compensations_offset(type), 3 * 13 * 33 * 64 + 64);
  EXPECT_EQ(type.num_bytes(), compensations_offset(type) + 3 * 13 * 2 * 16 * 4);
  EXPECT_EQ(packed_offset(type, 5), 64 + 1);  // row 0, column 5
  EXPECT_EQ(packed_offset(type, 17 * 130 + 5), 33 * 64 + 64 + 4 + 1);

  type.layout = panels_layout(true);
  EXPECT_EQ(element_bytes(type), 3 * 9 * 50 * 64);
  EXPECT_EQ(type.num_bytes(), 3 * 9 * 50 * 64 + 64 + 3 * 9 * 2 * 16 * 4);
  EXPECT_EQ(scales_type(type).shape, (std::vector<std::int64_t>{3, 2, 2}));

  type.shape = {0, 200, 130};
  EXPECT_EQ(type.num_bytes(), 0);
}

TEST(TensorType, RefusesWhatIsNoBlockFormat) {
  for (const char* text :
       {"i8_bf16_1x0[4,4]", "i8_bf16_x8[4,4]", "i8_bf16_1x[4,4]", "i8_bf16_-1x8[4,4]",
        "i8_bf16_01x8[4,4]", "i8_i32_1x8[4,4]", "i4_bf16_1x8[4,4]", "i8_bf16[4,4]", "i8_[4,4]",
        "_bf16_1x8[4,4]", "i8_bf16_1x99999999999999999999[4,4]", "i8_bf16_1x8[4]", "i8_bf16_1x8[]",
        "i8_bf16_1x8[2,2,2,2]"})
    EXPECT_THROW(parse_tensor_type(text), InvalidArgument) << text;
  // As large as a size may be: counts of blocks do not overflow.
  EXPECT_EQ(parse_tensor_type("i8_bf16_1x9223372036854775807[4,4]").num_bytes(), 64 + 4 * 2);
  EXPECT_EQ(parse_tensor_type("i8_bf16_9223372036854775807x1[4,4]").num_bytes(), 64 + 4 * 2);
  EXPECT_THROW(parse_tensor_type("i8_bf16_1x1[2147483648,2147483648]").num_bytes(),
               InvalidArgument);
}

}  // namespace
}  // namespace anabatic
