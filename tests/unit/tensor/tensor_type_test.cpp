// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_type.h"

#include <gtest/gtest.h>

#include "anabatic/error.h"

namespace anabatic {
namespace {

TEST(TensorType, TextRoundTrips) {
  for (const char* text : {"f32[]", "bf16[rows<=4096,512]@panel16x2", "i32[0]", "f64[8,512,3]",
                           "bool[a<=1,b<=2]", "u8[9223372036854775807]"})
    EXPECT_EQ(to_string(parse_tensor_type(text)), text);
  EXPECT_EQ(parse_tensor_type("f32[4,8]"), tensor_type(DType::kFloat32, {4, 8}));
}

TEST(TensorType, ParserNamesWhatItRefuses) {
  for (const char* text :
       {"", "f32", "f32[", "f32]", "f32][", "f33[4]", "[4]", "f32[-1]", "f32[4,]", "f32[,4]",
        "f32[x]", "f32[<=4]", "f32[n<=]", "f32[4]@", "f32[4]x", "f32[9223372036854775808]"}) {
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
  EXPECT_EQ(parse_tensor_type("f64[rows<=10,2]").num_bytes(), 160);
}

TEST(TensorType, RefusesCountsThatOverflow) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  EXPECT_EQ(tensor_type(DType::kInt8, {kHuge, kHuge}).num_bytes(), std::int64_t{1} << 62);
  EXPECT_THROW(tensor_type(DType::kInt8, {kHuge, kHuge, 2}).num_elements(), InvalidArgument);
  EXPECT_THROW(tensor_type(DType::kFloat64, {kHuge, kHuge}).num_bytes(), InvalidArgument);
}

TEST(TensorType, NegativeAxesCountFromTheEnd) {
  const TensorType type = parse_tensor_type("f32[rows<=7,3]");
  EXPECT_EQ(type.dim(0), 7);
  EXPECT_EQ(type.dim(-1), 3);
  EXPECT_THROW(type.dim(2), InternalError);
  EXPECT_THROW(type.dim(-3), InternalError);
}

TEST(TensorType, SymbolsAndLayoutsArePartOfTheType) {
  EXPECT_NE(parse_tensor_type("f32[n<=4]"), parse_tensor_type("f32[4]"));
  EXPECT_NE(parse_tensor_type("f32[n<=4]"), parse_tensor_type("f32[m<=4]"));
  EXPECT_NE(parse_tensor_type("f32[4]@packed"), parse_tensor_type("f32[4]"));
}

}  // namespace
}  // namespace anabatic
