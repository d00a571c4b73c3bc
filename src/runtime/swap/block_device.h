// SPDX-License-Identifier: Apache-2.0
// What the swap file needs from the system: reads and writes of whole sectors at offsets, several
// at a time. There are two devices: io_uring, and one pread or pwrite after the other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/rounding.h"

namespace anabatic::runtime::swap {

// Offsets, lengths and addresses are multiples of it: direct I/O requires that on any disk.
inline constexpr std::int64_t kSectorBytes = 4096;

constexpr std::int64_t round_to_sectors(std::int64_t bytes) {
  return round_up(bytes, kSectorBytes);
}

struct Piece {
  bool is_write = false;
  std::int64_t offset = 0;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

struct Completion {
  int slot = 0;
  std::int64_t result = 0;  // bytes moved, perhaps fewer than asked for, or -errno
};

// Not thread-safe: one thread starts pieces and waits for them.
class BlockDevice {
 public:
  virtual ~BlockDevice() = default;
  virtual std::string_view name() const = 0;
  virtual int depth() const = 0;  // most pieces under way at once
  // Names the memory of most pieces, replacing an earlier list: it must stay mapped until a call
  // without it. Pieces there may be cheaper. No piece may be under way.
  virtual void use_memory(std::span<const std::span<std::byte>>) {}
  // Starts a piece under a free slot in [0, depth()): at once, or in the next wait() that finds no
  // finished one.
  virtual void start(int slot, const Piece& piece) = 0;
  // Returns a piece that ended, in any order. At least one must be under way.
  virtual Completion wait() = 0;
};

// Replaces a device by another: tests plant faults with it.
using DeviceWrapper = std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)>;

// The descriptor must outlive the device.
std::unique_ptr<BlockDevice> make_plain_device(int descriptor);
// Null if the system refuses io_uring; `reason` then tells why.
std::unique_ptr<BlockDevice> make_uring_device(int descriptor, std::string& reason);

}  // namespace anabatic::runtime::swap
