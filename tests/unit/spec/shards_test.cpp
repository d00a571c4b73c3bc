// SPDX-License-Identifier: Apache-2.0
#include "spec/shards.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tensor/panels.h"

namespace anabatic::spec {
namespace {

TensorType packed(TensorType type) {
  type.layout = panels_layout(false);
  return type;
}

// Parts follow one another and cover the tensor; rows and stored elements say the same.
void expect_cover(const TensorType& type, std::int64_t num_ranks) {
  SCOPED_TRACE(to_string(type) + " over " + std::to_string(num_ranks));
  std::int64_t row = 0, element = 0;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const ElementRange range = shard_elements(type, num_ranks, rank);
    EXPECT_EQ(range.begin, element);
    element = range.end;
    const auto shard = shard_of(type, num_ranks, rank);
    if (!shard) continue;
    EXPECT_EQ(shard->first_row, row);
    EXPECT_GT(shard->matrices * shard->rows, 0);
    EXPECT_EQ(range.end - range.begin, stored_elements(type_of(*shard, type)));
    row += shard->matrices * shard->rows;
  }
  EXPECT_EQ(element, stored_elements(type));
  if (row > 0) {
    EXPECT_EQ(row, type.num_elements() / type.dim(-1));
  }
}

TEST(Shards, CoverEachTensorOnce) {
  for (const TensorType& type :
       {tensor_type(DType::kFloat32, {100, 40}), tensor_type(DType::kFloat32, {16, 7}),
        tensor_type(DType::kFloat32, {8, 48, 16}), tensor_type(DType::kBFloat16, {5, 37, 9}),
        tensor_type(DType::kFloat32, {3, 1100, 16}), tensor_type(DType::kFloat32, {1000}),
        tensor_type(DType::kFloat32, {})})
    for (std::int64_t num_ranks = 1; num_ranks <= 9; ++num_ranks) {
      expect_cover(type, num_ranks);
      if (type.ndim() >= 2) expect_cover(packed(type), num_ranks);
    }
}

TEST(Shards, AreWholeMatricesOrWholePanels) {
  const TensorType stack = tensor_type(DType::kFloat32, {5, 37, 9});
  EXPECT_EQ(shard_of(stack, 2, 0), (Shard{0, 2, 37}));
  EXPECT_EQ(shard_of(stack, 2, 1), (Shard{2 * 37, 3, 37}));
  // Two of six ranks share the first matrix, of three panels.
  EXPECT_EQ(shard_of(stack, 6, 0), (Shard{0, 1, 16}));
  EXPECT_EQ(shard_of(stack, 6, 1), (Shard{16, 1, 21}));
  EXPECT_EQ(shard_of(stack, 6, 2), (Shard{37, 1, 37}));
}

// So that leaves of a step can be squared by whichever rank has them.
TEST(Shards, ThoseOfTwiceAsManyRanksArePartsOfThem) {
  for (const TensorType& type :
       {tensor_type(DType::kFloat32, {1000, 40}), tensor_type(DType::kFloat32, {3, 1100, 16}),
        tensor_type(DType::kFloat32, {5, 370, 9}), tensor_type(DType::kFloat32, {7, 48, 9})})
    for (std::int64_t num_ranks = 1; num_ranks <= 16; ++num_ranks)
      for (std::int64_t rank = 0; rank < num_ranks && shard_of(type, 2 * num_ranks, 0); ++rank) {
        SCOPED_TRACE(fmt::format("{}: {} of {}", to_string(type), rank, num_ranks));
        EXPECT_EQ(shard_elements(type, 2 * num_ranks, 2 * rank).begin,
                  shard_elements(type, num_ranks, rank).begin);
        EXPECT_EQ(shard_elements(type, 2 * num_ranks, 2 * rank + 1).end,
                  shard_elements(type, num_ranks, rank).end);
      }
}

TEST(Shards, AreNotThereWhereARankWouldGetNothing) {
  EXPECT_FALSE(shard_of(tensor_type(DType::kFloat32, {48, 9}), 4, 0));
  EXPECT_TRUE(shard_of(tensor_type(DType::kFloat32, {49, 9}), 4, 0));
  EXPECT_FALSE(shard_of(tensor_type(DType::kFloat32, {4096}), 2, 0));
  EXPECT_FALSE(shard_of(tensor_type(DType::kFloat32, {0, 9}), 1, 0));
}

}  // namespace
}  // namespace anabatic::spec
