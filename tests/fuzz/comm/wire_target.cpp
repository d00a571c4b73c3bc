// SPDX-License-Identifier: Apache-2.0
// The header of a message is the one that a rank waits for, or it is refused by name.
#include <cstring>

#include "comm/wire.h"
#include "fuzz/fuzz_target.h"

using namespace anabatic;

namespace {

constexpr std::int64_t kMostPieceBytes = 4096;

// A message that is long enough to come in pieces.
const comm::Header kExpected{.plan = 0x1122334455667788,
                             .step = 3,
                             .number = 7,
                             .kind = comm::ExchangeKind::kAllGather,
                             .bytes = 100'000};

comm::Wire read(std::string_view bytes) {
  comm::Wire wire;
  if (bytes.size() != sizeof(wire)) throw InvalidArgument("[exchange] expected a whole header");
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  comm::Incoming expected;
  expected.peer = 1;
  expected.header = kExpected;
  try {
    comm::check_wire(wire, expected, 0, kMostPieceBytes);
  } catch (const CommError& error) {
    throw InvalidArgument(std::string("[exchange] ") + error.what());
  }
  return wire;
}

void check(const comm::Wire& wire) {
  const comm::Wire want = comm::to_wire(kExpected);
  fuzz::require(wire.plan == want.plan && wire.step == want.step && wire.number == want.number &&
                    wire.kind == want.kind && wire.bytes == want.bytes,
                "the header that was expected");
  fuzz::require(wire.piece_bytes >= 1 && wire.piece_bytes <= kMostPieceBytes,
                "pieces that fit their buffers");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      bytes, [&] { return read(bytes); }, check);
}
