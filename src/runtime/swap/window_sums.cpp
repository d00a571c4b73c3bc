// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/window_sums.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "base/error.h"
#include "base/rounding.h"
#include "runtime/swap/checksum.h"
#include "runtime/swap/swap_file.h"

namespace anabatic::runtime::swap {
namespace {

constexpr std::int64_t kBlockWords = kBlockBytes / kWordBytes;
constexpr std::int64_t kLineWords = 8;  // of a cache line
// Threads beyond these share one's sums with another.
constexpr int kShards = 16;

// The shard of the calling thread.
int shard() {
  static std::atomic<int> num_threads{0};
  thread_local const int mine = num_threads++ % kShards;
  return mine;
}

}  // namespace

WindowSums::WindowSums(const std::byte* data, std::int64_t state_bytes, std::int64_t region_bytes)
    : data_(data),
      state_words_(state_bytes / kWordBytes),
      region_words_(region_bytes / kWordBytes),
      num_blocks_(ceil_div(region_bytes, kBlockBytes)) {
  parts_.resize(2 * kShards * part(0, Pass::kRead).size());
}

std::span<std::uint64_t> WindowSums::part(int shard, Pass pass) {
  const std::int64_t words = round_up(num_blocks_ + 1, kLineWords);
  const std::int64_t index = 2 * shard + (pass == Pass::kWritten);
  return {parts_.data() + index * words, static_cast<std::size_t>(words)};
}

void WindowSums::add(Pass pass, std::int64_t block, std::int64_t words, std::uint64_t sum) {
  const std::span<std::uint64_t> mine = part(shard(), pass);
  std::atomic_ref(mine[0]).fetch_add(static_cast<std::uint64_t>(words), std::memory_order_relaxed);
  std::atomic_ref(mine[static_cast<std::size_t>(block) + 1])
      .fetch_add(sum, std::memory_order_relaxed);
}

void WindowSums::add_words(Pass pass, std::int64_t first_word, std::int64_t end_word) {
  for (std::int64_t word = first_word; word < end_word;) {
    const std::int64_t block = word / kBlockWords;
    const std::int64_t end = std::min(end_word, (block + 1) * kBlockWords);
    add(pass, block, end - word, checksum(data_ + word * kWordBytes, end - word, word));
    word = end;
  }
}

void WindowSums::begin() {
  std::fill(parts_.begin(), parts_.end(), 0);
  add_words(Pass::kRead, state_words_, region_words_);
}

void WindowSums::end() { add_words(Pass::kWritten, state_words_, region_words_); }

void WindowSums::add_read(std::int64_t first, std::int64_t bytes) {
  add_words(Pass::kRead, first / kWordBytes, (first + bytes) / kWordBytes);
}

void WindowSums::add_written(std::int64_t first, std::int64_t bytes) {
  add_words(Pass::kWritten, first / kWordBytes, (first + bytes) / kWordBytes);
}

void WindowSums::add(std::int64_t first, std::int64_t bytes, std::uint64_t read,
                     std::uint64_t written) {
  const std::int64_t block = first / kBlockBytes, words = bytes / kWordBytes;
  add(Pass::kRead, block, words, read);
  add(Pass::kWritten, block, words, written);
}

// In the first thread's part.
std::span<const std::uint64_t> WindowSums::total(Pass pass) {
  const std::span<std::uint64_t> all = part(0, pass);
  for (int shard = 1; shard < kShards; ++shard) {
    const std::span<std::uint64_t> one = part(shard, pass);
    std::transform(all.begin(), all.end(), one.begin(), all.begin(), std::plus<>());
    std::fill(one.begin(), one.end(), 0);
  }
  ANABATIC_CHECK(all[0] == static_cast<std::uint64_t>(region_words_),
                 "[swap] a kernel reported {} words of {}", all[0], region_words_);
  return all.subspan(1, static_cast<std::size_t>(num_blocks_));
}

}  // namespace anabatic::runtime::swap
