// SPDX-License-Identifier: Apache-2.0
#include "io/data/row_packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "anabatic/error.h"
#include "base/philox.h"
#include "io/data/loader.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kVocabulary = 100000;

std::vector<Row> random_rows(std::size_t count, std::int32_t shortest, std::int32_t longest) {
  std::vector<Row> rows;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto length =
        shortest + static_cast<std::int32_t>(
                       random_below(3, 1, i, static_cast<std::uint64_t>(longest - shortest + 1)));
    rows.push_back({begin, length, 0});
    begin += length;
  }
  return rows;
}

TEST(PackRows, FillsSamplesWithWholeRows) {
  constexpr std::int64_t kCapacity = 2048;
  const std::vector<Row> given = random_rows(5000, 30, 600);
  std::vector<Row> rows = given;
  const std::vector<std::int64_t> begins = pack_rows(rows, kCapacity, 7);
  std::map<std::int64_t, std::int32_t> seen;
  std::int64_t tokens = 0;
  for (std::size_t sample = 0; sample + 1 < begins.size(); ++sample) {
    std::int64_t size = 0;
    for (std::int64_t i = begins[sample]; i < begins[sample + 1]; ++i) {
      const Row& row = rows[static_cast<std::size_t>(i)];
      EXPECT_TRUE(seen.emplace(row.begin, row.length).second) << row.begin;
      size += row.length;
    }
    EXPECT_LE(size, kCapacity);
    EXPECT_GT(size, 0);
    tokens += size;
  }
  EXPECT_EQ(begins.back(), std::ssize(given));
  EXPECT_EQ(seen.size(), given.size());
  EXPECT_GE(tokens * 100, 97 * kCapacity * (std::ssize(begins) - 1));
}

TEST(PackRows, IsAFunctionOfRowsAndSeed) {
  const auto begins_of = [](std::uint64_t seed) {
    std::vector<Row> rows = random_rows(300, 1, 9);
    (void)pack_rows(rows, 20, seed);
    std::vector<std::int64_t> begins;
    for (const Row& row : rows) begins.push_back(row.begin);
    return begins;
  };
  EXPECT_EQ(begins_of(1), begins_of(1));
  EXPECT_NE(begins_of(1), begins_of(2));
}

class RowsOfFiles : public ::testing::Test {
 protected:
  // Rows of so many tokens, whose ids name their place; `weights` of all tokens, or none.
  Dataset make(const std::vector<int>& lengths, const std::vector<float>& weights,
               std::int64_t sequence_length, RowOptions rows = {}) {
    Documents documents;
    std::int32_t id = 0;
    for (const int length : lengths) {
      documents.emplace_back();
      for (int i = 0; i < length; ++i) documents.back().push_back(id++);
    }
    const auto prefix = directory_ / "rows";
    std::vector<TokenFile> files;
    files.push_back({{.path = prefix}, write_documents(prefix, documents)});
    if (!weights.empty()) {
      const auto pair = indexed_pair(prefix);
      WeightFileWriter writer(*pair, false);
      writer.append(weights);
      writer.finish(std::ssize(documents));
      files.back().weights.emplace(*pair);
    }
    return Dataset(std::move(files), {.sequence_length = sequence_length,
                                      .packing = Packing::kBestFit,
                                      .vocab_size = kVocabulary,
                                      .pad_id = 99,
                                      .with_weights = true,
                                      .rows = rows});
  }

  MicroBatch read(const Dataset& dataset) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(dataset.num_samples()));
    std::iota(samples.begin(), samples.end(), 0);
    MicroBatch batch;
    SampleScratch scratch;
    fill_micro_batch(dataset, samples, batch, scratch);
    return batch;
  }

  TempDirectory directory_;
};

TEST_F(RowsOfFiles, AreIsolatedAndHaveTheWeightsOfTheirLabels) {
  const Dataset dataset = make({3, 4}, {9, 0, 2, 9, 1, 0.5, 0}, 8);
  const MicroBatch batch = read(dataset);
  EXPECT_THAT(batch.tokens, ElementsAre(3, 4, 5, 6, 0, 1, 2, 99));
  EXPECT_THAT(batch.labels, ElementsAre(4, 5, 6, -100, 1, 2, -100, -100));
  EXPECT_THAT(batch.weights, ElementsAre(1, 0.5, 0, 0, 0, 2, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 0));
  EXPECT_THAT(batch.key_begin, ElementsAre(0, 0, 0, 0, 4, 4, 4, 7));
  EXPECT_THAT(batch.key_end, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(batch.documents, ElementsAre(0, 0, 0, 0, 4, 4, 4, -1));
  EXPECT_EQ(batch.unmasked_tokens, 3);
  EXPECT_EQ(batch.real_tokens, 7) << "a token counts whatever its weight";
  EXPECT_EQ(batch.num_documents, 2);
  EXPECT_EQ(batch.label_weight(), 3.5);
  EXPECT_EQ(dataset.locate(0, 5), (TokenSource{.document = 0, .offset = 1}));
  EXPECT_EQ(dataset.locate(0, 3), (TokenSource{.document = 1, .offset = 3}));
  EXPECT_FALSE(dataset.locate(0, 7).has_value());
}

TEST_F(RowsOfFiles, WithoutWeightsTrainEveryLabel) {
  const MicroBatch batch = read(make({3, 2}, {}, 6));
  EXPECT_THAT(batch.weights, ElementsAre(1, 1, 0, 1, 0, 0));
  EXPECT_EQ(batch.label_weight(), 3);
}

TEST_F(RowsOfFiles, AreTruncatedAsAsked) {
  const std::vector<int> lengths{5, 2};
  const std::vector<float> weights{0, 0, 1, 0, 1, 0, 1};
  const auto rows = [](Truncation truncation) { return RowOptions{3, truncation}; };
  const Dataset start = make(lengths, weights, 4, rows(Truncation::kKeepStart));
  EXPECT_THAT(read(start).tokens, ElementsAre(0, 1, 2, 99, 5, 6, 99, 99));
  EXPECT_EQ(start.row_counts().truncated, 1);
  const Dataset end = make(lengths, weights, 4, rows(Truncation::kKeepEnd));
  EXPECT_THAT(read(end).tokens, ElementsAre(2, 3, 4, 99, 5, 6, 99, 99));
  EXPECT_EQ(end.locate(0, 1), (TokenSource{.document = 0, .offset = 3}));
  const Dataset drop = make(lengths, weights, 4, rows(Truncation::kDrop));
  EXPECT_THAT(read(drop).tokens, ElementsAre(5, 6, 99, 99));
  EXPECT_EQ(drop.row_counts().dropped_for_length, 1);
  EXPECT_THAT(error_of([&] { make(lengths, weights, 4, rows(Truncation::kError)); }),
              HasSubstr("got 1 longer ones:\n  " + (directory_ / "rows").string() +
                        ", row 0 (from 0): 5 tokens"));
}

TEST_F(RowsOfFiles, WithoutATrainedTokenAreLeftOut) {
  // The first row's only weight is of its first token, which nothing predicts; the second one's is
  // cut off.
  const Dataset dataset = make({2, 5, 2}, {1, 0, 0, 0, 0, 0, 1, 0, 1}, 3);
  EXPECT_EQ(dataset.row_counts().dropped_untrained, 2);
  EXPECT_THAT(read(dataset).tokens, ElementsAre(7, 8, 99));
  EXPECT_THAT(error_of([&] {
                make({2}, {1, 0}, 3);
              }),
              HasSubstr("expected a row with a trained token, got 1 rows in 1 files"));
}

TEST_F(RowsOfFiles, ThatAreAllZeroKeepTheStepFreeOfLabels) {
  const Dataset dataset = make({3, 3}, {0, 1, 0, 0, 0, 1}, 3);
  const MicroBatch batch = read(dataset);
  EXPECT_EQ(batch.unmasked_tokens, 2);
  EXPECT_EQ(batch.label_weight(), 2);
}

TEST_F(RowsOfFiles, RefuseWeightsOfAnotherIndexAndBadOnes) {
  const auto prefix = directory_ / "other";
  const auto write = [&](const Documents& documents, const std::vector<float>& weights) {
    (void)write_documents(prefix, documents);
    if (weights.empty()) return;
    WeightFileWriter writer(*indexed_pair(prefix), false);
    writer.append(weights);
    writer.finish(std::ssize(documents));
  };
  const auto error = [&] { return error_of([&] { WeightFile{*indexed_pair(prefix)}; }); };
  write({{1, 2}, {3}}, {0, 1, 1});
  EXPECT_EQ(error(), "");
  write({{1}, {2, 3}}, {});
  EXPECT_THAT(error(), HasSubstr("got those of another index, with 3 tokens in 2 documents"));
  write({{1, 2}}, {-1, 0});
  EXPECT_THAT(error(), HasSubstr("expected weights of at least 0, got -1 in place 0 of the table"));
  std::vector<float> many;
  for (int i = 0; i < 257; ++i) many.push_back(static_cast<float>(i));
  EXPECT_THAT(error_of([&] { write({Documents::value_type(257, 1)}, many); }),
              HasSubstr("at most 256 different weights"));
}

}  // namespace
}  // namespace anabatic::io
