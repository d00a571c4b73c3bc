// SPDX-License-Identifier: Apache-2.0
// Attention with lists of key blocks: what holds to the bit, and what is refused.
#include "spec/key_blocks.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "anabatic/error.h"
#include "ops/run_all.h"
#include "support/case_file.h"
#include "support/error_message.h"
#include "support/random_data.h"

namespace anabatic::testing {
namespace {

using ::testing::HasSubstr;

// The call with lists for `groups` groups of heads, whose block i has the blocks below `blocks` for
// which has(group, i, id).
template <class Has>
OpCall with_lists(OpCall call, std::int64_t size, std::int64_t blocks, std::int64_t groups,
                  Has&& has) {
  std::vector<double> offsets, ids;
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t block = 0; block <= blocks; ++block) {
      offsets.push_back(static_cast<double>(ids.size()));
      for (std::int64_t id = 0; block < blocks && id < blocks; ++id)
        if (has(group, block, id)) ids.push_back(static_cast<double>(id));
    }
  const auto num_ids = static_cast<std::int64_t>(ids.size());
  call.attributes[std::string(spec::kBlockSize)] = size;
  call.inputs.push_back({tensor_type(DType::kInt32, {groups, blocks + 1}), std::move(offsets)});
  call.inputs.push_back({tensor_type(DType::kInt32, {num_ids}), std::move(ids)});
  return call;
}

// Every case of attention and its gradient without lists, with lists of all blocks: of several
// sizes, for all heads or for each head.
TEST(KeyBlocks, OfAllKeysHaveTheBitsOfNoLists) {
  constexpr std::int64_t kSizes[] = {64, 1, 48, 128, 5};
  int num_cases = 0;
  for (const char* op : {"attention", "attention_gradient"}) {
    const CaseFile file =
        read_case_file(fmt::format("{}/tests/ops/cases/{}.txt", ANABATIC_SOURCE_DIR, op));
    for (const CaseLine& line : file.cases)
      for (const std::string& dtype : line.dtypes) {
        const OpCall dense = make_call(file, line, dtype, Regime::kBounded, 9);
        if (dense.attributes.contains(spec::kBlockSize)) continue;
        const std::int64_t size = kSizes[num_cases++ % 5],
                           blocks = dense.inputs[1].type.dim(0) / size + 1,
                           heads = spec::get_int(dense.attributes, "num_heads");
        const OpCall listed =
            with_lists(dense, size, blocks, num_cases % 2 == 0 ? heads : 1,
                       [](std::int64_t, std::int64_t, std::int64_t) { return true; });
        const auto want = run_all(dense), got = run_all(listed);
        ASSERT_EQ(want.size(), got.size()) << op;
        for (std::size_t i = 0; i < want.size(); ++i)
          for (std::size_t o = 0; o < want[i].size(); ++o)
            EXPECT_EQ(got[i][o].data, want[i][o].data)
                << "kernel " << i << " of " << op << " line " << line.line << " output " << o
                << " blocks of " << size;
      }
  }
  EXPECT_GE(num_cases, 200);
}

// The last of `num_rows` causal rows over as many keys: alone, or among the others.
OpCall last_row(DType dtype, std::int64_t num_rows, std::int64_t window, bool alone) {
  const auto of_rows = [&](std::int64_t width, std::uint64_t stream) {
    return random_values(tensor_type(dtype, {num_rows, width}), Regime::kBounded, 5, stream);
  };
  const Values q = of_rows(32, 0), k = of_rows(16, 1), v = of_rows(16, 2);
  const std::int64_t first = alone ? num_rows - 1 : 0, count = num_rows - first;
  const Values rows{tensor_type(dtype, {count, 32}), {q.data.begin() + 32 * first, q.data.end()}};
  Values begin{tensor_type(DType::kInt32, {count}), {}}, end = begin;
  for (std::int64_t t = first; t < num_rows; ++t) {
    begin.data.push_back(0);
    end.data.push_back(static_cast<double>(t + 1));
  }
  return {"attention",
          {{"num_heads", std::int64_t{2}},
           {"num_kv_heads", std::int64_t{1}},
           {"scale", 2.0},
           {"window", window}},
          {rows, k, v, begin, end},
          {rows.type, tensor_type(DType::kFloat32, {count, 2})}};
}

// Rows of one register tile may have other lists. What its neighbours see changes no bit of a row,
// so decoding has the bits of the full forward.
TEST(KeyBlocks, GiveOneRowTheBitsThatItHasAmongOthers) {
  const auto has = [](std::int64_t, std::int64_t block, std::int64_t id) {
    return id == block || (id < block && (id * 7 + block * 3) % 5 < 2);
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const std::int64_t num_rows : {129, 300, 515})
      for (const std::int64_t size : {1, 7, 32, 64})
        for (const std::int64_t window : {0, 150}) {
          const auto of = [&](bool alone) {
            return run_all(with_lists(last_row(dtype, num_rows, window, alone), size,
                                      num_rows / size + 1, 1, has));
          };
          const auto together = of(false), alone = of(true);
          ASSERT_EQ(together.size(), alone.size());
          for (std::size_t i = 0; i < alone.size(); ++i)
            for (std::size_t o = 0; o < 2; ++o)
              EXPECT_TRUE(std::equal(alone[i][o].data.rbegin(), alone[i][o].data.rend(),
                                     together[i][o].data.rbegin()))
                  << to_string(dtype) << " rows " << num_rows << " blocks of " << size;
        }
}

TEST(KeyBlocks, AreRefusedWhereTheyAreNotSound) {
  const OpCall good = last_row(DType::kFloat32, 4, 0, false);
  const auto refusal = [&](std::vector<double> offsets, std::vector<double> ids) {
    OpCall call = with_lists(good, 2, 2, 1, [](auto...) { return false; });
    const auto num_offsets = static_cast<std::int64_t>(offsets.size()),
               num_ids = static_cast<std::int64_t>(ids.size());
    call.inputs[5] = {tensor_type(DType::kInt32, {1, num_offsets}), std::move(offsets)};
    call.inputs[6] = {tensor_type(DType::kInt32, {num_ids}), std::move(ids)};
    return message_of<InvalidArgument>([&] { run_all(call); });
  };
  EXPECT_EQ(refusal({0, 1, 3}, {0, 0, 1}), "");
  EXPECT_THAT(refusal({0, 1}, {0}), HasSubstr("rows in 1 blocks of 2, got row 2 in block 1"));
  EXPECT_THAT(refusal({0, 2, 1}, {0, 1}), HasSubstr("block_offsets that ascend"));
  EXPECT_THAT(refusal({0, 1, 4}, {0, 0, 1}), HasSubstr("within [0, 3], got 4"));
  EXPECT_THAT(refusal({0, 1, 3}, {0, 1, 1}), HasSubstr("block_ids of a list that ascend"));
  EXPECT_THAT(refusal({0, 1, 2}, {-1, 1}), HasSubstr("got -1 at 0"));
}

}  // namespace
}  // namespace anabatic::testing
