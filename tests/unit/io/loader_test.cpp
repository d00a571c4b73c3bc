// SPDX-License-Identifier: Apache-2.0
#include "io/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "anabatic/error.h"
#include "unit/io/allocations.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

// Documents of 3 tokens with ids that name their place.
Dataset make_dataset(const TempDirectory& directory, int num_documents, std::int64_t length,
                     Packing packing = Packing::kIsolated, std::int64_t vocab_size = 10000) {
  Documents documents;
  for (int d = 0; d < num_documents; ++d) documents.push_back({3 * d, 3 * d + 1, 3 * d + 2});
  std::vector<TokenFile> files;
  files.push_back({{.path = "data"}, write_documents(directory / "data", documents)});
  return Dataset(std::move(files),
                 {.sequence_length = length, .packing = packing, .vocab_size = vocab_size});
}

bool equal(const MicroBatch& a, const MicroBatch& b) {
  return a.tokens == b.tokens && a.labels == b.labels && a.positions == b.positions &&
         a.key_begin == b.key_begin && a.key_end == b.key_end && a.documents == b.documents &&
         a.weights == b.weights && a.samples == b.samples &&
         a.unmasked_tokens == b.unmasked_tokens && a.real_tokens == b.real_tokens &&
         a.num_documents == b.num_documents;
}

bool equal(const StepBatch& a, const StepBatch& b) {
  return a.step == b.step && a.epoch == b.epoch && a.unmasked_tokens == b.unmasked_tokens &&
         std::ranges::equal(a.micro_batches, b.micro_batches,
                            [](const auto& x, const auto& y) { return equal(x, y); });
}

TEST(Loader, AssemblesRowsOfAMicroBatchWithOffsets) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 4, 4);
  Loader loader(dataset, {.micro_batch_size = 2, .accumulation_steps = 1, .shuffle = false});
  const StepBatch& step = loader.load_step(0);
  ASSERT_EQ(step.micro_batches.size(), 1u);
  const MicroBatch& batch = step.micro_batches[0];
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batch.labels, (std::vector<std::int32_t>{1, 2, -100, 4, 5, -100, 7, 8}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 0, 1, 0, 1}));
  EXPECT_EQ(batch.key_begin, (std::vector<std::int32_t>{0, 0, 0, 3, 4, 4, 6, 6}));
  EXPECT_EQ(batch.key_end, (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.unmasked_tokens, 6);
  EXPECT_EQ(step.unmasked_tokens, 6);
}

TEST(Loader, TakesConcatenatedSamplesInOrderWithoutShuffle) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 9, 2, Packing::kConcatenated);  // 13 samples
  Loader loader(dataset, {.micro_batch_size = 2, .accumulation_steps = 3, .shuffle = false});
  std::int64_t place = 0;
  for (std::int64_t step = 0; step < 5; ++step) {
    const StepBatch& batch = loader.load_step(step);
    EXPECT_EQ(batch.epoch, 6 * step / 13);
    for (const MicroBatch& micro_batch : batch.micro_batches) {
      for (const std::int64_t sample : micro_batch.samples) EXPECT_EQ(sample, place++ % 13);
      EXPECT_EQ(micro_batch.tokens[0], 2 * micro_batch.samples[0]);
    }
  }
}

TEST(Loader, GivesTheSameStepWhateverWasReadBefore) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 50, 7);
  const LoaderOptions options = {.micro_batch_size = 2, .accumulation_steps = 2, .seed = 3};
  LoaderOptions without = options;
  without.prefetch = false;
  Loader ahead(dataset, options);
  Loader direct(dataset, without);
  for (const std::int64_t step : {0, 1, 2, 9, 3, 3, 4, 30, 31, 0}) {
    EXPECT_TRUE(equal(ahead.load_step(step), direct.load_step(step))) << step;
    EXPECT_TRUE(equal(ahead.load_step(step), Loader(dataset, options).load_step(step))) << step;
  }
}

TEST(Loader, ShowsEverySampleOnceAnEpoch) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 20, 5);  // 12 samples
  Loader loader(dataset, {.micro_batch_size = 2, .accumulation_steps = 2, .seed = 11});
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (std::int64_t step = 0; step < 6; ++step) {
    const StepBatch& batch = loader.load_step(step);
    EXPECT_EQ(batch.epoch, step / 3);
    std::int64_t slot = 0;
    for (const MicroBatch& micro_batch : batch.micro_batches) {
      for (const std::int64_t sample : micro_batch.samples) {
        EXPECT_EQ(sample, loader.sample_index(step, slot++));
        epochs[static_cast<std::size_t>(step / 3)].push_back(sample);
      }
    }
  }
  for (const auto& epoch : epochs) EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), 12u);
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(Loader, ReusesItsBuffersAfterTwoSteps) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 50, 7);
  Loader loader(dataset, {.micro_batch_size = 2, .accumulation_steps = 2});
  std::set<const std::int32_t*> places;
  for (std::int64_t step = 0; step < 2; ++step) {
    for (const MicroBatch& batch : loader.load_step(step).micro_batches) {
      places.insert(batch.tokens.data());
    }
  }
  EXPECT_EQ(places.size(), 4u);
  for (std::int64_t step = 2; step < 8; ++step) {
    for (const MicroBatch& batch : loader.load_step(step).micro_batches) {
      EXPECT_TRUE(places.contains(batch.tokens.data()));
    }
  }
}

TEST(Loader, AllocatesNothingAfterTwoSteps) {
  const TempDirectory directory;
  for (const Packing packing : {Packing::kIsolated, Packing::kConcatenated}) {
    const Dataset dataset = make_dataset(directory, 50, 7, packing);
    Loader loader(dataset, {.micro_batch_size = 3, .accumulation_steps = 2});
    loader.load_step(0);
    loader.load_step(1);
    loader.load_step(2);  // step 1 is whole, and step 2 was the second fill of the first buffer
    const std::int64_t before = num_allocations();
    ASSERT_GT(before, 0);
    for (std::int64_t step = 3; step < 50; ++step) loader.load_step(step);
    EXPECT_EQ(num_allocations() - before, 0);
  }
}

TEST(Loader, ThrowsABackgroundErrorWhenItsStepIsAskedFor) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 4, 3, Packing::kIsolated, 5);
  Loader loader(dataset, {.micro_batch_size = 1, .shuffle = false});
  EXPECT_NO_THROW(loader.load_step(0));
  EXPECT_THAT(error_of([&] { loader.load_step(1); }), ::testing::HasSubstr("got 5"));
  EXPECT_EQ(loader.load_step(0).step, 0);
}

TEST(FillMicroBatch, FillsUpWithPadding) {
  const TempDirectory directory;
  const Dataset dataset = make_dataset(directory, 1, 2);
  MicroBatch batch;
  SampleScratch scratch;
  const std::vector<std::int64_t> samples = {1, -1};
  fill_micro_batch(dataset, samples, batch, scratch);
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{2, 0, 0, 0}));
  EXPECT_EQ(batch.labels, (std::vector<std::int32_t>(4, -100)));
  EXPECT_EQ(batch.key_begin, (std::vector<std::int32_t>{0, 1, 2, 2}));
  EXPECT_EQ(batch.unmasked_tokens, 0);
  EXPECT_EQ(batch.documents, (std::vector<std::int32_t>{0, -1, -1, -1}));
  EXPECT_EQ(batch.real_tokens, 1);
  EXPECT_EQ(batch.num_documents, 1);
}

}  // namespace
}  // namespace anabatic::io
