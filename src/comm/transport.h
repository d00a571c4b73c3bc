// SPDX-License-Identifier: Apache-2.0
// What moves messages between ranks: one object a rank. A Communicator drives it.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "comm/collectives.h"
#include "comm/doorbell.h"
#include "comm/message.h"

namespace anabatic::comm {

// What the threads of one rank share: who holds the mutex moves its messages; the doorbell tells
// them that something may have changed.
struct Seat {
  std::mutex mutex;
  Doorbell bell;
};

// Messages from one rank to another keep the order of send(). Their n-th send() meets the n-th
// receive() of the other side.
class Transport {
 public:
  // sleep_nanoseconds() when only the doorbell brings news.
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  std::int32_t rank() const { return rank_; }
  std::int32_t size() const { return size_; }
  Seat& seat() { return *seat_; }

  // These need the seat's mutex. A message stays where it is until it is taken or finished, or
  // until settle() after an abort. None blocks, and none allocates.
  virtual void send(Outgoing& message) = 0;
  virtual void receive(Incoming& message) = 0;
  // More of a message that was sent is ready: its first so many bytes.
  virtual void advance(Outgoing& message, std::int64_t ready) = 0;
  // Brings `is_taken` up to date.
  virtual void poll(Outgoing& message) = 0;
  // Brings `arrived` up to date. CommError when what comes in its place is another message.
  virtual void poll(Incoming& message) = 0;
  // The receiver has used all bytes: they belong to the sender again.
  virtual void finish(Incoming& message) = 0;
  // After polls that found nothing: how long a poll may wait unless the doorbell rings.
  virtual std::int64_t sleep_nanoseconds() { return kForever; }

  // What the library below does by itself for whole groups; null: nothing. Wrappers have none, for
  // they do not see what that sends.
  virtual Collectives* collectives() { return nullptr; }

  // These are for callers without the mutex.
  // Ends all exchanges of all ranks: the first text stays, and every doorbell rings.
  virtual void abort(const std::string& text) = 0;
  // The text; null while nobody aborted. What it points to stays.
  virtual const std::string* abort_text() const = 0;
  // After an abort: returns when no other rank reads memory of this one, and none will.
  virtual void settle() = 0;

 protected:
  Transport(std::int32_t rank, std::int32_t size, Seat& seat)
      : rank_(rank), size_(size), seat_(&seat) {}

 private:
  std::int32_t rank_, size_;
  Seat* seat_;
};

// One that hands everything on, for those that change a part of it.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner)
      : Transport(inner->rank(), inner->size(), inner->seat()), inner_(std::move(inner)) {}
  void send(Outgoing& message) override { inner_->send(message); }
  void receive(Incoming& message) override { inner_->receive(message); }
  void advance(Outgoing& message, std::int64_t ready) override { inner_->advance(message, ready); }
  void poll(Outgoing& message) override { inner_->poll(message); }
  void poll(Incoming& message) override { inner_->poll(message); }
  void finish(Incoming& message) override { inner_->finish(message); }
  std::int64_t sleep_nanoseconds() override { return inner_->sleep_nanoseconds(); }
  void abort(const std::string& text) override { inner_->abort(text); }
  const std::string* abort_text() const override { return inner_->abort_text(); }
  void settle() override { inner_->settle(); }

 protected:
  Transport& inner() { return *inner_; }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace anabatic::comm
