// SPDX-License-Identifier: Apache-2.0
// One frame arena for many executors whose programs run one at a time. It grows to the largest of
// them; what it holds between two runs is nobody's.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/memory.h"

namespace anabatic::runtime {

class SharedFrame {
 public:
  // Moves to other bytes where it has fewer; ResourceError when the system refuses. It grows by a
  // quarter at least, for all of it is touched anew.
  void reserve(std::int64_t bytes) {
    const std::int64_t had = memory_.bytes();
    if (bytes <= had) return;
    memory_ = {};  // first, so that not both exist at once
    memory_ = device::Memory(std::max(bytes, had + had / 4));
  }
  const device::Memory& memory() const { return memory_; }

 private:
  device::Memory memory_;
};

}  // namespace anabatic::runtime
