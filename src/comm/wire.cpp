// SPDX-License-Identifier: Apache-2.0
#include "comm/wire.h"

#include "base/error.h"

namespace anabatic::comm {

Wire to_wire(const Header& header) {
  return {.plan = header.plan,
          .step = header.step,
          .bytes = header.bytes,
          .number = header.number,
          .kind = static_cast<std::uint32_t>(header.kind)};
}

void check_wire(const Wire& wire, const Incoming& expected, std::int32_t rank,
                std::int64_t most_piece_bytes) {
  const auto refuse_part = [&](const char* part, std::int64_t got) {
    throw CommError(fmt::format("rank {} sent a header whose {} is {}, where rank {} expected {}",
                                expected.peer, part, got, rank, to_string(expected.header)));
  };
  if (wire.kind >= kNumExchangeKinds) refuse_part("kind", wire.kind);
  const Header sent{wire.plan, wire.step, wire.number, static_cast<ExchangeKind>(wire.kind),
                    wire.bytes};
  if (sent != expected.header) refuse(sent, expected, rank);
  if (wire.piece_bytes < 1 || wire.piece_bytes > most_piece_bytes)
    refuse_part("size of a piece", wire.piece_bytes);
}

}  // namespace anabatic::comm
