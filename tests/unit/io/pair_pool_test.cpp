// SPDX-License-Identifier: Apache-2.0
#include "io/data/pair_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "anabatic/error.h"
#include "io/data/dataset.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PairPoolTest : public ::testing::Test {
 protected:
  // Pair i has the bytes i and i + 100.
  void make_pairs(int count) {
    for (int i = 0; i < count; ++i) {
      auto& pair = pairs_.emplace_back(std::make_unique<PooledPair>());
      pair->bin = directory_ / (std::to_string(i) + ".bin");
      pair->idx = directory_ / (std::to_string(i) + ".idx");
      write_text(pair->bin, std::string(1, static_cast<char>(i)));
      write_text(pair->idx, std::string(1, static_cast<char>(i + 100)));
      PairPool::stamp(*pair);
    }
  }

  static std::array<int, 2> bytes_of(PairPool& pool, PooledPair& pair) {
    const PairPool::Pin pin(pool, pair);
    std::array<std::byte, 1> bin, idx;
    pin.read_bin(0, bin);
    pin.read_idx(0, idx);
    return {static_cast<int>(bin[0]), static_cast<int>(idx[0])};
  }

  TempDirectory directory_;
  std::vector<std::unique_ptr<PooledPair>> pairs_;
};

TEST_F(PairPoolTest, KeepsFewPairsOpen) {
  make_pairs(10);
  PairPool pool(3);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(bytes_of(pool, *pairs_[static_cast<std::size_t>(i)]), (std::array{i, i + 100}));
      EXPECT_LE(pool.num_open(), 3);
    }
  }
  pool.forget(*pairs_[9]);
  EXPECT_EQ(pool.num_open(), 2);
}

TEST_F(PairPoolTest, ClosesTheLeastRecentlyUsed) {
  make_pairs(3);
  PairPool pool(2);
  bytes_of(pool, *pairs_[0]);
  bytes_of(pool, *pairs_[1]);
  bytes_of(pool, *pairs_[0]);
  bytes_of(pool, *pairs_[2]);
  EXPECT_GE(pairs_[0]->slot, 0);
  EXPECT_LT(pairs_[1]->slot, 0);
}

TEST_F(PairPoolTest, ServesMoreThreadsThanItHasRoom) {
  make_pairs(20);
  PairPool pool(2);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 300; ++i) {
        const int place = (i * 7 + thread * 3) % 20;
        const auto bytes = bytes_of(pool, *pairs_[static_cast<std::size_t>(place)]);
        wrong += bytes != std::array{place, place + 100};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(pool.num_open(), 2);
}

TEST_F(PairPoolTest, NamesAFileThatChangedOrWent) {
  make_pairs(4);
  PairPool pool(1);
  bytes_of(pool, *pairs_[0]);
  write_text(pairs_[1]->bin, "longer");
  EXPECT_THAT(
      error_of([&] { bytes_of(pool, *pairs_[1]); }),
      HasSubstr("1.bin: expected the file as it was when the run opened its data (1 bytes), "
                "got one that was changed since (6 bytes)"));
  fs::remove(pairs_[2]->idx);
  EXPECT_THAT(error_of([&] { bytes_of(pool, *pairs_[2]); }), HasSubstr("cannot open "));
  // One that is open and ends before what was promised.
  const PairPool::Pin pin(pool, *pairs_[3]);
  fs::resize_file(pairs_[3]->bin, 0);
  std::array<std::byte, 1> byte;
  EXPECT_THAT(error_of([&] { pin.read_bin(0, byte); }), HasSubstr("3.bin ends early"));
  EXPECT_EQ(pool.num_open(), 1);
}

// Beyond what the pool of the process keeps open.
TEST(PairPool, ReadsADatasetOfManyFiles) {
  const TempDirectory directory;
  constexpr int kFiles = 200;
  std::vector<TokenFile> files;
  for (int f = 0; f < kFiles; ++f) {
    const auto prefix = directory / std::to_string(f);
    files.push_back({{.path = prefix}, write_documents(prefix, {{f, f + 1}, {}, {f + 2}})});
  }
  EXPECT_LE(PairPool::instance().num_open(), 32);
  const Dataset dataset(std::move(files), {.sequence_length = 3, .vocab_size = 1000});
  ASSERT_EQ(dataset.num_samples(), kFiles);
  std::array<std::vector<std::int32_t>, 6> rows;
  for (auto& row : rows) row.resize(3);
  SampleScratch scratch;
  for (int i = 0; i < kFiles; ++i) {
    const int f = i * 71 % kFiles;
    dataset.read(f, 0, {rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]}, scratch);
    EXPECT_EQ(rows[0], (std::vector<std::int32_t>{f, f + 1, f + 2}));
    EXPECT_EQ(rows[2], (std::vector<std::int32_t>{0, 1, 0}));
  }
  EXPECT_LE(PairPool::instance().num_open(), 32);
}

}  // namespace
}  // namespace anabatic::io
