// SPDX-License-Identifier: Apache-2.0
// What the library under a transport does by itself for all members of a group.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "comm/exchange.h"

namespace anabatic::comm {

class Collectives {
 public:
  virtual ~Collectives() = default;

  // Whether the members of the group met when the transport was made: a collective has no other.
  virtual bool has(std::span<const std::int32_t> group) const = 0;

  // These need the seat's mutex. None blocks. All members start the same exchanges of their group
  // in the same order. `room` has collective_room_bytes(), aligned to 64, and stays with all that
  // the exchange points to until has_ended(), or until settle() after an abort. CommError: what
  // the library says.
  virtual void start(const Exchange& exchange, std::size_t me, std::span<std::byte> room) = 0;
  virtual bool has_ended(std::span<std::byte> room) = 0;
};

// Counts of a library are int: an exchange of more elements, or rows, is cut into calls.
inline constexpr std::int64_t kMostCount = std::numeric_limits<int>::max();
inline constexpr std::int64_t kMostCuts = 16;
// Calls of an exchange: one, or cuts of each member's part.
inline std::int64_t most_calls(std::int64_t group_size) { return group_size + kMostCuts; }
// Elements of a sum, or rows, that an exchange may have. Rows between all members are never cut: a
// member does not know how many others send to each other.
inline std::int64_t most_collective_elements(ExchangeKind kind) {
  return kind == ExchangeKind::kExchangeRows ? kMostCount : kMostCuts * kMostCount;
}

// For the requests and counts of an exchange.
std::int64_t collective_room_bytes(std::int64_t group_size);

}  // namespace anabatic::comm
