// SPDX-License-Identifier: Apache-2.0
// Memory between inaccessible pages, so that a read or a write next to it is a signal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

namespace anabatic::plugin::check {

// Where inaccessible pages touch the data: right before their begin, or right after their end.
enum class Side { kBegin, kEnd };

class GuardedMemory {
 public:
  // All accessible bytes are `fill`. At kEnd the data begin at a multiple of `alignment`, so fewer
  // than that many accessible bytes may follow them.
  GuardedMemory(std::int64_t bytes, Side side, std::byte fill, std::int64_t alignment = 1);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  void make_read_only();
  // Bytes from the data's begin to an address; none outside of this memory and its guards.
  std::optional<std::int64_t> offset_of(const void* address) const;
  // The first accessible byte around the data that is no longer `fill`, from the data's begin.
  std::optional<std::int64_t> changed_around() const;

 private:
  std::byte* map_ = nullptr;    // guard, accessible pages, guard
  std::byte* pages_ = nullptr;  // the accessible ones
  std::byte* data_ = nullptr;
  std::int64_t bytes_, page_bytes_, map_bytes_;
  std::byte fill_;
};

}  // namespace anabatic::plugin::check
