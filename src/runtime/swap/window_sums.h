// SPDX-License-Identifier: Apache-2.0
// Checksums of the windows that one call updates. Its kernel's threads compute them while the bytes
// are in their caches, so nothing else reads the bytes for that.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/byte_watch.h"

namespace anabatic::runtime::swap {

// Sums of one window, by blocks of kBlockBytes: of what was read, and of what will be written.
class WindowSums {
 public:
  // The state's bytes at `data`, which a kernel reports, and the rest of the region's last sector.
  WindowSums(const std::byte* data, std::int64_t state_bytes, std::int64_t region_bytes);

  // Before the call, and after it: add the parts that the kernel does not report.
  void begin();
  void end();
  // Bytes [first, first + bytes) of the state, as they are or with their sums. From any thread.
  void add_read(std::int64_t first, std::int64_t bytes);
  void add_written(std::int64_t first, std::int64_t bytes);
  void add(std::int64_t first, std::int64_t bytes, std::uint64_t read, std::uint64_t written);

  // After `end`. InternalError if the kernel reported another number of words than there are.
  std::span<const std::uint64_t> read() { return total(Pass::kRead); }
  std::span<const std::uint64_t> written() { return total(Pass::kWritten); }

 private:
  enum class Pass : std::uint8_t { kRead, kWritten };
  // The words of one thread, by pass, then its sums of blocks.
  std::span<std::uint64_t> part(int shard, Pass pass);
  void add(Pass pass, std::int64_t block, std::int64_t words, std::uint64_t sum);
  void add_words(Pass pass, std::int64_t first_word, std::int64_t end_word);
  std::span<const std::uint64_t> total(Pass pass);

  const std::byte* data_;
  std::int64_t state_words_, region_words_, num_blocks_;  // the first: whole ones
  std::vector<std::uint64_t> parts_;
};

// Passes the reports of a call's kernel to the windows of its outputs.
class CallWatch : public kernels::ByteWatch {
 public:
  explicit CallWatch(std::vector<WindowSums*> by_output) : by_output_(std::move(by_output)) {}
  void before(std::size_t output, std::int64_t first, std::int64_t bytes) override {
    if (WindowSums* sums = by_output_[output]) sums->add_read(first, bytes);
  }
  void after(std::size_t output, std::int64_t first, std::int64_t bytes) override {
    if (WindowSums* sums = by_output_[output]) sums->add_written(first, bytes);
  }
  void summed(std::size_t output, std::int64_t first, std::int64_t bytes, std::uint64_t read,
              std::uint64_t written) override {
    if (WindowSums* sums = by_output_[output]) sums->add(first, bytes, read, written);
  }

 private:
  std::vector<WindowSums*> by_output_;  // null: not in a window of its own
};

}  // namespace anabatic::runtime::swap
