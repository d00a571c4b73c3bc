// SPDX-License-Identifier: Apache-2.0
// One frame arena for many executors whose programs run one at a time. It grows to the largest of
// them; what it holds between two runs is nobody's.
#pragma once
#include <cstdint>

#include "device/memory.h"

namespace anabatic::runtime {

class SharedFrame {
 public:
  // Moves to other bytes where it has fewer; ResourceError when the system refuses.
  void reserve(std::int64_t bytes) {
    if (bytes <= memory_.bytes()) return;
    memory_ = {};  // first, so that not both exist at once
    memory_ = device::Memory(bytes);
  }
  const device::Memory& memory() const { return memory_; }

 private:
  device::Memory memory_;
};

}  // namespace anabatic::runtime
