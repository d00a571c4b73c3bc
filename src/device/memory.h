// SPDX-License-Identifier: Apache-2.0
// Memory of arenas and states, and what the process and the machine say about memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "device/cgroup.h"

namespace anabatic::device {

// Zeroed bytes, aligned to huge pages when large, spread over memory nodes and touched, so that a
// step meets no page fault.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::int64_t bytes);  // ResourceError when the system refuses
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }  // null when empty
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
};

std::int64_t current_resident_bytes();  // of this process; 0 where the system does not say
std::int64_t peak_resident_bytes();     // since it began, or since the last reset
bool reset_peak_resident();             // false where the system cannot

// The smaller of what the machine has free and what the limit of this process's cgroup, version 1
// or 2, or of any group above it leaves; file cache that the group can drop counts as left. The
// largest value where the system says nothing.
std::int64_t available_bytes(const SystemRoots& roots = {});

// Makes the heap give back large blocks as soon as they are free, so that a process holds what it
// uses: without it one block of some MiB stays with the heap for good. Nothing where the C library
// has no such switch. For the owner of a process, before its threads start.
void return_freed_memory();

// Gives the system the pages that are free inside the heap, behind work that left many of them.
void trim_heap();

}  // namespace anabatic::device
