// SPDX-License-Identifier: Apache-2.0
// Memory for arenas and states, and how much the process uses and the machine has.
#pragma once
#include <cstddef>
#include <cstdint>

#include "device/cgroup.h"

namespace anabatic::device {

// Zeroed bytes, aligned to huge pages if large, spread over NUMA nodes. They are touched, so that a
// step has no page faults.
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

std::int64_t current_resident_bytes();  // of this process; 0 if the system does not report it
std::int64_t peak_resident_bytes();     // since it began, or since the last reset
bool reset_peak_resident();             // false if the system cannot

// What is left of the machine's free memory, and of the limits of this process's cgroups, version 1
// or 2, and their parents: the smallest. File cache that a group can drop counts as free. The
// largest value if the system reports nothing.
std::int64_t available_bytes(const SystemRoots& roots = {});

// Makes the heap return large blocks to the system as soon as they are freed. Without it one block
// of some MiB stays with the heap for good. No effect if the C library has no such switch. To be
// called by the owner of a process before its threads start.
void return_freed_memory();

// Returns pages that are free inside the heap to the system, after work that freed many of them.
void trim_heap();

}  // namespace anabatic::device
