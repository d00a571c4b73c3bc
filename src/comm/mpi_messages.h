// SPDX-License-Identifier: Apache-2.0
// A message over MPI as its two ends see it: its header as sent, its pieces, their buffers.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <type_traits>
#include <vector>

#include "comm/message.h"
#include "comm/mpi_calls.h"
#include "comm/wire.h"
#include "device/memory.h"

namespace anabatic::comm::mpi {

inline constexpr std::int64_t kPoolBytes = 16 << 20;  // of slots
inline constexpr std::int64_t kMostSlotBytes = 512 << 10;
inline constexpr std::int64_t kMostSlots = 4;  // of one message

// Buffers of equal size, handed out in the order in which messages ask. So the oldest exchange
// that is not complete always gets its own some time.
class Slots {
 public:
  struct Holder {
    std::array<std::byte*, kMostSlots> slots{};
    std::int64_t num_wanted = 0, num_slots = 0;  // all that are wanted, or none yet
    Holder* next = nullptr;
  };

  Slots(std::int64_t count, std::int64_t bytes)
      : count_(count), bytes_(bytes), memory_(count * bytes) {
    for (std::int64_t i = 0; i < count; ++i) free_.push_back(memory_.data() + i * bytes);
  }

  std::int64_t count() const { return count_; }
  std::int64_t bytes() const { return bytes_; }  // of a slot

  void ask(Holder& holder, std::int64_t num_wanted) {
    holder.num_wanted = std::min(num_wanted, kMostSlots);
    holder.num_slots = 0;
    holder.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &holder;
    last_ = &holder;
    serve();
  }

  void give_back(Holder& holder) {
    for (std::int64_t i = 0; i < holder.num_slots; ++i)
      free_.push_back(holder.slots[static_cast<std::size_t>(i)]);
    holder.num_wanted = holder.num_slots = 0;
    serve();
  }

 private:
  void serve() {
    for (; first_ != nullptr && static_cast<std::size_t>(first_->num_wanted) <= free_.size();
         first_ = first_->next)
      for (; first_->num_slots < first_->num_wanted; ++first_->num_slots) {
        first_->slots[static_cast<std::size_t>(first_->num_slots)] = free_.back();
        free_.pop_back();
      }
  }

  std::int64_t count_, bytes_;
  device::Memory memory_;
  std::vector<std::byte*> free_;
  Holder *first_ = nullptr, *last_ = nullptr;
};

inline std::int64_t slot_bytes(std::int32_t num_ranks) {
  const std::int64_t most = kPoolBytes / (kMostSlots * std::max(num_ranks - 1, 1));
  return std::clamp<std::int64_t>(most / 4096 * 4096, 4096, kMostSlotBytes);
}

// One set of slots for each peer, or as many as the pool holds.
inline std::int64_t num_slots(std::int32_t num_ranks) {
  return std::max<std::int64_t>(kMostSlots * (num_ranks - 1), kPoolBytes / slot_bytes(num_ranks));
}

inline constexpr std::int64_t kMostPieces = 4;  // of a message under way at once

// The pieces of a message under way.
struct Pieces : Slots::Holder {
  int tag = 0;
  std::int64_t bytes = 0, piece_bytes = 0, count = 0;
  std::int64_t posted = 0, done = 0;  // pieces, in order
  std::int64_t begins_nanoseconds = 0;
  MPI_Request begins = MPI_REQUEST_NULL;  // of the value above, where it follows by itself
  std::array<MPI_Request, kMostPieces> requests;

  Pieces() { requests.fill(MPI_REQUEST_NULL); }
  void start(const Wire& wire) {
    bytes = wire.bytes;
    piece_bytes = wire.piece_bytes;
    count = (bytes + piece_bytes - 1) / piece_bytes;
    posted = done = 0;
    begins_nanoseconds = wire.begins_nanoseconds;
  }
  std::int64_t begin_of(std::int64_t piece) const { return piece * piece_bytes; }
  std::int64_t end_of(std::int64_t piece) const { return std::min(begin_of(piece + 1), bytes); }
  std::byte* slot_of(std::int64_t piece) const {
    return slots[static_cast<std::size_t>(piece % num_slots)];
  }
  MPI_Request& request_of(std::int64_t piece) {
    return requests[static_cast<std::size_t>(piece % kMostPieces)];
  }
};

struct Sending : Pieces {
  Outgoing* message = nullptr;
  Wire wire;
  MPI_Request header = MPI_REQUEST_NULL;
  Sending *before = nullptr, *after = nullptr;  // of the list
};

struct Receiving : Pieces {
  bool is_matched = false;
  Receiving *before = nullptr, *after = nullptr;  // of the list
};

// A list that owns nothing.
template <class T>
class List {
 public:
  T* first() const { return first_; }
  void append(T& item) {
    item.before = last_;
    item.after = nullptr;
    (last_ == nullptr ? first_ : last_->after) = &item;
    last_ = &item;
  }
  void remove(T& item) {
    (item.before == nullptr ? first_ : item.before->after) = item.after;
    (item.after == nullptr ? last_ : item.after->before) = item.before;
  }

 private:
  T *first_ = nullptr, *last_ = nullptr;
};

// Makes the state of a message in its room.
template <class T, class Message>
T& make_state(Message& message) {
  static_assert(sizeof(T) <= kRoomBytes && alignof(T) <= kRoomAlignment &&
                std::is_trivially_destructible_v<T>);
  T* made = new (message.room.data()) T;
  message.state = made;
  return *made;
}

}  // namespace anabatic::comm::mpi
