// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;
using Ints = std::vector<std::int32_t>;

constexpr std::int32_t kPad = 99;

struct Sample {
  Ints tokens, labels, positions, key_begin, key_end, documents;
  std::int64_t unmasked = 0, real_tokens = 0, num_documents = 0;
};

Sample read(const Dataset& dataset, std::int64_t sample, std::int32_t first_row = 0) {
  const auto length = static_cast<std::size_t>(dataset.options().sequence_length);
  Sample result{Ints(length, -7), Ints(length, -7), Ints(length, -7),
                Ints(length, -7), Ints(length, -7), Ints(length, -7)};
  SampleScratch scratch;
  const SampleCounts counts = dataset.read(sample, first_row,
                                           {result.tokens, result.labels, result.positions,
                                            result.key_begin, result.key_end, result.documents},
                                           scratch);
  result.unmasked = counts.labels;
  result.real_tokens = counts.tokens;
  result.num_documents = counts.documents;
  return result;
}

class DatasetTest : public ::testing::Test {
 protected:
  // Each element is one file.
  Dataset make(const std::vector<Documents>& files, std::int64_t length, Packing packing,
               std::int64_t vocab_size = 100) {
    std::vector<TokenFile> token_files;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto prefix = directory_ / ("file" + std::to_string(i));
      token_files.push_back({{.path = prefix}, write_documents(prefix, files[i])});
    }
    return Dataset(
        std::move(token_files),
        {.sequence_length = length, .packing = packing, .vocab_size = vocab_size, .pad_id = kPad});
  }

  TempDirectory directory_;
};

TEST_F(DatasetTest, IsolatedFillsSamplesAndRestartsAtDocuments) {
  const Dataset dataset = make({{{1, 2, 3}, {}, {4}, {5, 6}}, {{}, {7, 8}}}, 4, Packing::kIsolated);
  ASSERT_EQ(dataset.num_samples(), 2);
  EXPECT_EQ(dataset.num_documents(), 6);
  const Sample first = read(dataset, 0);
  EXPECT_EQ(first.tokens, (Ints{1, 2, 3, 4}));
  EXPECT_EQ(first.labels, (Ints{2, 3, -100, -100}));
  EXPECT_EQ(first.positions, (Ints{0, 1, 2, 0}));
  EXPECT_EQ(first.key_begin, (Ints{0, 0, 0, 3}));
  EXPECT_EQ(first.key_end, (Ints{1, 2, 3, 4}));
  EXPECT_EQ(first.unmasked, 2);
  const Sample second = read(dataset, 1, 4);
  EXPECT_EQ(second.tokens, (Ints{5, 6, 7, 8}));
  EXPECT_EQ(second.labels, (Ints{6, -100, 8, -100}));
  EXPECT_EQ(second.positions, (Ints{0, 1, 0, 1}));
  EXPECT_EQ(second.key_begin, (Ints{4, 4, 6, 6}));
  EXPECT_EQ(second.key_end, (Ints{5, 6, 7, 8}));
}

TEST_F(DatasetTest, SaysWhichDocumentATokenIsOfAndWhatIsPadding) {
  const std::vector<Documents> files{{{1, 2, 3}, {}, {4}, {5, 6}}, {{}, {7, 8}}};
  const Dataset isolated = make(files, 6, Packing::kIsolated);
  const Sample first = read(isolated, 0, 6), last = read(isolated, 1, 12);
  EXPECT_EQ(first.documents, (Ints{6, 6, 6, 9, 10, 10}));
  EXPECT_EQ(first.real_tokens, 6);
  EXPECT_EQ(first.num_documents, 3);
  EXPECT_EQ(last.documents, (Ints{12, 12, -1, -1, -1, -1}));
  EXPECT_EQ(last.real_tokens, 2);
  EXPECT_EQ(last.num_documents, 1);
  const Sample packed = read(make(files, 5, Packing::kConcatenated), 0, 5);
  EXPECT_EQ(packed.documents, (Ints{5, 5, 5, 8, 9}));
  EXPECT_EQ(packed.key_begin, (Ints{5, 5, 5, 5, 5}));
  EXPECT_EQ(packed.real_tokens, 5);
  EXPECT_EQ(packed.num_documents, 3);
}

TEST_F(DatasetTest, IsolatedTakesTheLabelFromTheNextSampleOfTheSameDocument) {
  const Dataset dataset = make({{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}}, 4, Packing::kIsolated);
  ASSERT_EQ(dataset.num_samples(), 3);
  EXPECT_EQ(read(dataset, 0).labels, (Ints{2, 3, 4, 5}));
  EXPECT_EQ(read(dataset, 1).labels, (Ints{6, 7, 8, 9}));
  EXPECT_EQ(read(dataset, 1).positions, (Ints{0, 1, 2, 3})) << "a later piece restarts";
  const Sample last = read(dataset, 2);
  EXPECT_EQ(last.tokens, (Ints{9, 10, kPad, kPad}));
  EXPECT_EQ(last.labels, (Ints{10, -100, -100, -100}));
  EXPECT_EQ(last.positions, (Ints{0, 1, 0, 1}));
  EXPECT_EQ(last.key_begin, (Ints{0, 0, 2, 2}));
  EXPECT_EQ(last.key_end, (Ints{1, 2, 3, 4}));
  EXPECT_EQ(last.unmasked, 1);
}

TEST_F(DatasetTest, IsolatedDocumentOfExactlyOneSampleHasNoLastLabel) {
  const Dataset dataset = make({{{1, 2, 3, 4}, {5, 6, 7, 8}}}, 4, Packing::kIsolated);
  ASSERT_EQ(dataset.num_samples(), 2);
  EXPECT_EQ(read(dataset, 0).labels, (Ints{2, 3, 4, -100}));
  EXPECT_EQ(read(dataset, 1).labels, (Ints{6, 7, 8, -100}));
  EXPECT_EQ(read(dataset, 1).key_begin, (Ints{0, 0, 0, 0}));
}

TEST_F(DatasetTest, IsolatedPadsASingleShortDocument) {
  const Dataset dataset = make({{{1}}}, 3, Packing::kIsolated);
  const Sample sample = read(dataset, 0);
  EXPECT_EQ(sample.tokens, (Ints{1, kPad, kPad}));
  EXPECT_EQ(sample.unmasked, 0);
}

TEST_F(DatasetTest, ConcatenatedReadsTheStreamAcrossDocumentsAndFiles) {
  const Dataset dataset = make({{{1, 2, 3}, {}}, {}, {{4}, {5, 6}}}, 2, Packing::kConcatenated);
  ASSERT_EQ(dataset.num_samples(), 2);
  const Sample first = read(dataset, 0);
  EXPECT_EQ(first.tokens, (Ints{1, 2}));
  EXPECT_EQ(first.labels, (Ints{2, 3}));
  const Sample second = read(dataset, 1, 2);
  EXPECT_EQ(second.tokens, (Ints{3, 4}));
  EXPECT_EQ(second.labels, (Ints{4, 5}));
  EXPECT_EQ(second.positions, (Ints{0, 1}));
  EXPECT_EQ(second.key_begin, (Ints{2, 2}));
  EXPECT_EQ(second.key_end, (Ints{3, 4}));
  EXPECT_EQ(second.unmasked, 2);
}

TEST_F(DatasetTest, ConcatenatedNeedsOneTokenMoreThanWholeSamples) {
  EXPECT_EQ(make({{{1, 2, 3, 4}}}, 2, Packing::kConcatenated).num_samples(), 1);
  EXPECT_EQ(make({{{1, 2, 3, 4, 5}}}, 2, Packing::kConcatenated).num_samples(), 2);
}

TEST_F(DatasetTest, LocateNamesTheSourceOfEveryToken) {
  const std::vector<Documents> files = {
      {{1, 2, 3}, {}, {4}, {5, 6}}, {{}}, {{}, {7, 8, 9, 10, 11}, {12}, {}}};
  for (const Packing packing : {Packing::kIsolated, Packing::kConcatenated}) {
    const Dataset dataset = make(files, 5, packing);
    std::size_t located = 0;
    for (std::int64_t sample = 0; sample < dataset.num_samples(); ++sample) {
      const Sample rows = read(dataset, sample);
      for (std::int64_t i = 0; i < 5; ++i) {
        const std::optional<TokenSource> source = dataset.locate(sample, i);
        if (!source) {
          EXPECT_EQ(rows.tokens[static_cast<std::size_t>(i)], kPad);
          continue;
        }
        ++located;
        EXPECT_EQ(rows.tokens[static_cast<std::size_t>(i)],
                  files.at(source->file)
                      .at(static_cast<std::size_t>(source->document))
                      .at(static_cast<std::size_t>(source->offset)));
      }
    }
    EXPECT_EQ(located, packing == Packing::kIsolated ? 12u : 10u);
  }
}

TEST_F(DatasetTest, IsolatedKeepsEveryTokenAndLabelOnce) {
  std::vector<Documents> files(3);
  std::int32_t next = 0;
  std::size_t labels = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    std::vector<std::int32_t> document(i * 7 % 13);
    for (std::int32_t& id : document) id = next++;
    labels += document.empty() ? 0 : document.size() - 1;
    files[i / 20].push_back(document);
  }
  for (const std::int64_t length : {1, 2, 5, 13, 64}) {
    const Dataset dataset = make(files, length, Packing::kIsolated, 1000);
    std::vector<int> tokens_seen(static_cast<std::size_t>(next), 0);
    std::size_t unmasked = 0;
    for (std::int64_t sample = 0; sample < dataset.num_samples(); ++sample) {
      const Sample rows = read(dataset, sample);
      for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
        ASSERT_LE(i == 0 ? 0 : rows.key_begin[i - 1], rows.key_begin[i]);
        ASSERT_EQ(rows.positions[i], static_cast<std::int32_t>(i) - rows.key_begin[i]);
        if (rows.labels[i] != kIgnoredLabel) {
          ASSERT_EQ(rows.labels[i], rows.tokens[i] + 1);
        }
        if (dataset.locate(sample, static_cast<std::int64_t>(i))) {
          ++tokens_seen[static_cast<std::size_t>(rows.tokens[i])];
        }
      }
      unmasked += static_cast<std::size_t>(rows.unmasked);
    }
    EXPECT_EQ(unmasked, labels) << length;
    EXPECT_EQ(std::ranges::count(tokens_seen, 1), next) << length;
  }
}

TEST_F(DatasetTest, NamesTheNumbersWhenTheDataIsTooShort) {
  EXPECT_THAT(
      error_of([&] {
        make({{{1, 2}, {3}}}, 3, Packing::kConcatenated);
      }),
      HasSubstr("4 tokens for sequence_length 3 with concatenated packing, got 3 tokens in 1"));
  EXPECT_THAT(error_of([&] { make({{{}}}, 3, Packing::kIsolated); }),
              HasSubstr("with isolated packing, got 0 tokens"));
  EXPECT_THAT(error_of([&] { make({}, 3, Packing::kIsolated); }), HasSubstr("0 files"));
}

TEST_F(DatasetTest, RefusesRowsOfAnotherLength) {
  const Dataset dataset = make({{{1, 2, 3, 4}}}, 4, Packing::kIsolated);
  Ints whole(4), parts(3);
  SampleScratch scratch;
  for (int part = 0; part < 6; ++part) {
    SampleRows rows{whole, whole, whole, whole, whole, whole};
    *std::array{&rows.tokens,    &rows.labels,  &rows.positions,
                &rows.key_begin, &rows.key_end, &rows.documents}[static_cast<std::size_t>(part)] =
        parts;
    EXPECT_THROW(dataset.read(0, 0, rows, scratch), InvalidArgument) << part;
    EXPECT_THROW(dataset.read_padding(0, rows), InvalidArgument) << part;
  }
}

TEST_F(DatasetTest, NamesFileDocumentOffsetAndIdOutsideTheVocabulary) {
  const Dataset dataset = make({{{1}}, {{2}, {}, {3, 150}}}, 2, Packing::kIsolated);
  EXPECT_NO_THROW(read(dataset, 0));
  EXPECT_THAT(error_of([&] { read(dataset, 1); }),
              HasSubstr("file1, document 2, token 1: expected an id in [0, 100)"));
  EXPECT_THAT(error_of([&] { read(dataset, 1); }), HasSubstr("got 150"));
}

}  // namespace
}  // namespace anabatic::io
