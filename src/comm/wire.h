// SPDX-License-Identifier: Apache-2.0
// The header of a message as it goes from one process to another.
#pragma once
#include <cstdint>

#include "comm/message.h"

namespace anabatic::comm {

// Bytes of one machine's kind.
struct Wire {
  std::uint64_t plan = 0;
  std::int64_t step = 0, bytes = 0, piece_bytes = 0, begins_nanoseconds = 0;
  std::uint32_t number = 0, kind = 0;
};

Wire to_wire(const Header& header);

// CommError unless the wire has the header of the message that this rank expects, and pieces of 1
// to `most_piece_bytes`.
void check_wire(const Wire& wire, const Incoming& expected, std::int32_t rank,
                std::int64_t most_piece_bytes);

}  // namespace anabatic::comm
