// SPDX-License-Identifier: Apache-2.0
#include "comm/local_transport.h"

#include <atomic>
#include <utility>

#include "base/error.h"

namespace anabatic::comm {
namespace {

// Messages from one rank to another that have been sent and not met their receive().
struct Channel {
  std::mutex mutex;
  Outgoing *first = nullptr, *last = nullptr;
  // The receiver's, under its seat's mutex.
  std::int64_t num_received = 0, num_matched = 0;
};

struct World {
  explicit World(std::int32_t num_ranks)
      : size(num_ranks),
        seats(static_cast<std::size_t>(num_ranks)),
        channels(static_cast<std::size_t>(num_ranks) * static_cast<std::size_t>(num_ranks)) {}

  Seat& seat(std::int32_t rank) { return seats[static_cast<std::size_t>(rank)]; }
  Channel& channel(std::int32_t from, std::int32_t to) {
    return channels[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) +
                    static_cast<std::size_t>(to)];
  }

  std::int32_t size;
  std::vector<Seat> seats;
  std::vector<Channel> channels;
  std::mutex abort_mutex;
  std::string text;  // written once, before is_aborted
  std::atomic<bool> is_aborted{false};
};

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<World> world, std::int32_t rank)
      : Transport(rank, world->size, world->seat(rank)), world_(std::move(world)) {}

  void send(Outgoing& message) override {
    message.next = nullptr;
    Channel& channel = world_->channel(rank(), message.peer);
    {
      const std::lock_guard lock(channel.mutex);
      (channel.first == nullptr ? channel.first : channel.last->next) = &message;
      channel.last = &message;
    }
    world_->seat(message.peer).bell.ring();
  }

  void receive(Incoming& message) override {
    message.place = world_->channel(message.peer, rank()).num_received++;
  }

  void advance(Outgoing& message, std::int64_t ready) override {
    message.ready.store(ready, std::memory_order_release);
    world_->seat(message.peer).bell.ring();
  }

  void poll(Outgoing&) override {}  // the receiver sets it

  void poll(Incoming& message) override {
    if (message.state == nullptr && !match(message)) return;
    const Outgoing& sent = *static_cast<Outgoing*>(message.state);
    message.arrived = sent.ready.load(std::memory_order_acquire);
    if (message.arrived > 0) message.begins_nanoseconds = sent.begins_nanoseconds;
  }

  void finish(Incoming& message) override {
    // After this the sender may free the message.
    auto* sent = static_cast<Outgoing*>(std::exchange(message.state, nullptr));
    sent->is_taken.store(true, std::memory_order_release);
    world_->seat(message.peer).bell.ring();
  }

  void abort(const std::string& text) override {
    {
      const std::lock_guard lock(world_->abort_mutex);
      if (!world_->is_aborted.load()) {
        world_->text = text;
        world_->is_aborted.store(true);
      }
    }
    for (Seat& seat : world_->seats) seat.bell.ring();
  }

  const std::string* abort_text() const override {
    return world_->is_aborted.load() ? &world_->text : nullptr;
  }

  // Whoever reads memory of another rank holds its own mutex, and looks for an abort before it
  // reads.
  void settle() override {
    for (Seat& seat : world_->seats) const std::lock_guard lock(seat.mutex);
  }

 private:
  bool match(Incoming& message) {
    Channel& channel = world_->channel(message.peer, rank());
    if (message.place != channel.num_matched) return false;
    Outgoing* sent = nullptr;
    {
      const std::lock_guard lock(channel.mutex);
      sent = channel.first;
      if (sent == nullptr) return false;
      if (sent->header == message.header) channel.first = sent->next;
    }
    if (sent->header != message.header) refuse(sent->header, message, rank());
    ++channel.num_matched;
    message.state = sent;
    message.block = sent->block;
    return true;
  }

  std::shared_ptr<World> world_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> local_transports(std::int32_t num_ranks) {
  ANABATIC_REQUIRE(num_ranks >= 1, "[ranks] expected at least one, got {}", num_ranks);
  const auto world = std::make_shared<World>(num_ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank)
    transports.push_back(std::make_unique<LocalTransport>(world, rank));
  return transports;
}

}  // namespace anabatic::comm
