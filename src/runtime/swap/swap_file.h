// SPDX-License-Identifier: Apache-2.0
// A scratch file without a name, for states outside memory. Every block has a checksum in memory,
// and each read is compared with it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/byte_watch.h"
#include "runtime/swap/block_device.h"

namespace anabatic::runtime::swap {

// The unit of checksums and of transfers.
inline constexpr std::int64_t kBlockBytes = kernels::ByteWatch::kBlockBytes;

struct SwapOptions {
  std::filesystem::path directory;
  int num_compute_threads = 0;  // the swap thread avoids as many cores if it can
  bool try_uring = true, try_direct = true;
  double patience_seconds = 300;  // how long one transfer may take before the disk counts as failed
  DeviceWrapper wrap_device{};
};

struct Region {  // of the file: the bytes of one state, whole sectors
  std::string name;
  std::int64_t offset = 0, bytes = 0;
  std::int64_t first_block = 0, num_blocks = 0;
};

class SwapFile {
 public:
  // ResourceError naming the directory when no file can be made there.
  explicit SwapFile(const SwapOptions& options);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  // Reserves the bytes on the disk, which read as zeroes; returns the region's index. ResourceError
  // when the disk is full.
  std::size_t add(std::string_view name, std::int64_t bytes);
  const Region& region(std::size_t index) const { return regions_[index]; }

  // Moves `num_blocks` contiguous blocks of a region, from its block `first` on, from or to `data`.
  // Short transfers are continued. ResourceError naming file, region, offset, what was expected and
  // found; nothing is under way then. Allocates nothing unless it throws. Without `sums`, the
  // caller handles the checksums with the two functions below.
  void transfer(bool is_write, std::size_t region, std::int64_t first, std::int64_t num_blocks,
                std::byte* data, bool sums = true);
  // Checksums of all blocks of a region while no transfer moves it. Set before a write; compared
  // after a read, for blocks that were ever written: ResourceError as above.
  void set_checksums(std::size_t region, std::span<const std::uint64_t> of_blocks);
  void compare_checksums(std::size_t region, std::span<const std::uint64_t> of_blocks) const;

  // As in BlockDevice.
  void use_memory(std::span<const std::span<std::byte>> memory) { device_->use_memory(memory); }

  std::int64_t bytes() const { return bytes_; }
  const std::filesystem::path& directory() const { return directory_; }
  // "io_uring, direct I/O in DIR", with the reason if something was refused.
  std::string describe() const;

 private:
  struct Slot {
    bool is_free = true;
    std::int64_t block = 0;  // of the region
    std::int64_t done = 0, bytes = 0;
    int num_idle = 0;  // completions in a row that moved nothing
  };
  struct Block {
    std::uint64_t checksum = 0;
    bool is_written = false;  // otherwise zeroes that need no reading
  };
  struct Transfer;

  void open(const SwapOptions& options);
  bool try_direct_read() const;
  void start(const Transfer& transfer, int slot);
  void begin_block(const Transfer& transfer, int slot, std::int64_t block);
  void complete(Transfer& transfer, const Completion& completion);
  void finish_block(Transfer& transfer, const Slot& slot);
  // Empty if the block is what was written.
  std::string mismatch(const Region& region, std::int64_t block, std::uint64_t found) const;

  std::filesystem::path directory_;
  int descriptor_ = -1;
  bool is_direct_ = false;
  std::string remarks_;
  std::unique_ptr<BlockDevice> device_;
  std::int64_t bytes_ = 0;
  std::vector<Region> regions_;
  std::vector<Block> blocks_;
  std::vector<Slot> slots_;
};

}  // namespace anabatic::runtime::swap
