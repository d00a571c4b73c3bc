// SPDX-License-Identifier: Apache-2.0
// Parts of states that other ranks hold, for who writes a state whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/name.h"

namespace anabatic::runtime {

class PeerStates {
 public:
  virtual ~PeerStates() = default;
  // Bytes of a state, as they are stored, from first_byte on. CommError.
  virtual void read_bytes(Name state, std::int64_t first_byte, std::span<std::byte> bytes) = 0;
};

}  // namespace anabatic::runtime
