// SPDX-License-Identifier: Apache-2.0
// What one rank owes another in an exchange: a message, as its sender and its receiver see it. Both
// sides own theirs, in the workspace of the exchange; transports link them and allocate nothing.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/exchange.h"

namespace anabatic::comm {

// Messages move in pieces of at most so many bytes, so that all exchanges under way advance.
inline constexpr std::int64_t kPieceBytes = 256 << 10;

// Which message this is. Messages between two ranks keep their order, so sender and receiver of the
// n-th one expect the same header. A difference means that ranks run different programs.
struct Header {
  std::uint64_t plan = 0;  // hash of what all ranks agreed to run
  std::int64_t step = 0;
  std::uint32_t number = 0;  // of the exchange in its step, in the order of posts
  ExchangeKind kind{};
  std::int64_t bytes = 0;
  bool operator==(const Header&) const = default;
};
std::string to_string(const Header& header);  // "exchange 7 of step 3 (all_gather, 4096 bytes)"

// Bytes in memory: contiguous, or rows by an index.
struct Block {
  const std::byte* data = nullptr;
  const std::int32_t* row_index = nullptr;  // times index_divisor; null: contiguous
  std::int32_t index_divisor = 1;
  std::int64_t row_bytes = 0;
};
// Bytes [offset, offset + bytes) of the block.
void copy_from(const Block& block, std::int64_t offset, std::int64_t bytes, std::byte* to);

// Room in every message for what a transport keeps of it.
inline constexpr std::size_t kRoomBytes = 256, kRoomAlignment = 16;

struct Outgoing {
  std::int32_t peer = 0;
  Header header{};
  Block block{};
  std::int64_t begins_nanoseconds = 0;  // a paced link's: when it begins to send this
  std::atomic<std::int64_t> ready{0};   // the first so many bytes may be sent
  std::atomic<bool> is_taken{false};    // the receiver has all of it: the bytes are free
  Outgoing* next = nullptr;             // the transport's
  void* state = nullptr;                // likewise
  alignas(kRoomAlignment) std::array<std::byte, kRoomBytes> room;
};

struct Incoming {
  std::int32_t peer = 0;
  Header header{};
  std::byte* to = nullptr;              // where a copy puts it; null: it is read where it lies
  bool to_is_free = false;              // the transport may write there at any time
  Block block{};                        // once bytes have arrived: where they lie until finish()
  std::int64_t arrived = 0;             // [used, arrived) can be read there
  std::int64_t used = 0;                // by the exchange
  std::int64_t begins_nanoseconds = 0;  // the sender's, once bytes have arrived
  void* state = nullptr;                // the transport's
  std::int64_t place = 0;               // the transport's: among all messages from this peer
  alignas(kRoomAlignment) std::array<std::byte, kRoomBytes> room;
  bool is_complete() const { return used == header.bytes; }
};

// CommError: what came from the peer is not what this rank expects.
[[noreturn]] void refuse(const Header& sent, const Incoming& expected, std::int32_t rank);

}  // namespace anabatic::comm
