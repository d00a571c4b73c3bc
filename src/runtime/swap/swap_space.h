// SPDX-License-Identifier: Apache-2.0
// The swap engine: a swap file and one thread that moves regions in the order of requests. The
// thread runs on another core than the compute threads if there is one.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/swap/swap_file.h"

namespace anabatic::runtime::swap {

// Size of the buffer through which parts of a region are moved.
inline constexpr std::int64_t kStagingBytes = 4 * kBlockBytes;

// Number of a transfer, in the order of the queue; 0: none.
using Ticket = std::uint64_t;

struct SwapStats {  // since the engine began
  std::int64_t read_bytes = 0, written_bytes = 0;
  std::int64_t busy_nanoseconds = 0;    // of the engine's thread, in transfers
  std::int64_t waited_nanoseconds = 0;  // of callers in wait()
};

// Used by one thread. An error of the disk is kept: nothing moves after it, and every later wait
// throws it.
class SwapSpace {
 public:
  explicit SwapSpace(const SwapOptions& options);  // errors as SwapFile
  ~SwapSpace();                                    // drops transfers that have not started
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  // A region of zeroes; returns its index. Errors as SwapFile::add.
  std::size_t add(std::string_view name, std::int64_t bytes);

  // Queue a whole region to or from `data`, which is aligned to sectors and has
  // round_to_sectors(bytes) bytes. The engine owns them until the ticket is done. Transfers happen
  // one after the other, so a later read sees an earlier write. Allocate nothing.
  Ticket read(std::size_t region, std::byte* data);
  Ticket write(std::size_t region, const std::byte* data);
  // As these, for a caller that sums every word itself while it is in its caches: one sum
  // (checksum.h) for each block of kBlockBytes. `check` compares what was read, after the wait for
  // it and before the region's next transfer.
  Ticket read_unchecked(std::size_t region, std::byte* data);
  void check(std::size_t region, std::span<const std::uint64_t> checksums);
  Ticket write_summed(std::size_t region, const std::byte* data,
                      std::span<const std::uint64_t> checksums);
  void wait(Ticket ticket);  // ResourceError: the first one of any transfer
  void wait_all();
  void finish() noexcept;  // as wait_all, for destructors: an error stays for the next wait

  // Any bytes of a region, after all queued transfers, through a buffer of kStagingBytes. Return
  // when done.
  void read_bytes(std::size_t region, std::int64_t first, std::span<std::byte> bytes);
  void write_bytes(std::size_t region, std::int64_t first, std::span<const std::byte> bytes);

  // Locks these bytes in memory and registers them with the device, if the system allows it. They
  // are touched in any case. They must be unpinned before they are freed. ResourceError: of an
  // earlier transfer.
  void pin(std::span<std::byte> bytes);
  void unpin(std::span<std::byte> bytes) noexcept;

  std::int64_t region_bytes(std::size_t region) const;  // whole sectors
  std::int64_t file_bytes() const;
  SwapStats stats() const;
  std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::runtime::swap
