// SPDX-License-Identifier: Apache-2.0
#include "comm/paced_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/clock.h"

namespace anabatic::comm {
namespace {

class PacedTransport : public ForwardingTransport {
 public:
  PacedTransport(std::unique_ptr<Transport> inner, const spec::ClusterSpec& cluster)
      : ForwardingTransport(std::move(inner)), free_at_(static_cast<std::size_t>(size())) {
    ANABATIC_REQUIRE(cluster.num_ranks() >= size(),
                     "[cluster] expected a device for each of {} ranks, got {}", size(),
                     cluster.num_ranks());
    for (std::int32_t peer = 0; peer < size(); ++peer) {
      to_.push_back(spec::link_between(cluster, rank(), peer));
      from_.push_back(spec::link_between(cluster, peer, rank()));
    }
  }

  void send(Outgoing& message) override {
    if (message.ready.load(std::memory_order_relaxed) > 0) schedule(message);
    inner().send(message);
  }

  void advance(Outgoing& message, std::int64_t ready) override {
    if (message.ready.load(std::memory_order_relaxed) == 0) schedule(message);
    inner().advance(message, ready);
  }

  using ForwardingTransport::poll;
  void poll(Incoming& message) override {
    inner().poll(message);
    if (message.arrived <= message.used) return;
    const spec::Link& link = from_[static_cast<std::size_t>(message.peer)];
    const std::int64_t first =
        message.begins_nanoseconds + static_cast<std::int64_t>(link.latency_seconds * 1e9);
    const std::int64_t now = device::wall_nanoseconds();
    std::int64_t arrived = message.used;  // whole pieces
    while (arrived < message.arrived) {
      const std::int64_t next = std::min(arrived + kPieceBytes, message.arrived);
      const std::int64_t due = first + duration(link, next);
      if (due > now) {
        due_ = std::min(due_, due);
        break;
      }
      arrived = next;
    }
    message.arrived = arrived;
  }

  std::int64_t sleep_nanoseconds() override {
    const std::int64_t due = std::exchange(due_, kForever);
    const std::int64_t others = inner().sleep_nanoseconds();
    if (due == kForever) return others;
    return std::min(others, std::max<std::int64_t>(due - device::wall_nanoseconds(), 0));
  }

 private:
  void schedule(Outgoing& message) {
    const auto peer = static_cast<std::size_t>(message.peer);
    message.begins_nanoseconds = std::max(device::wall_nanoseconds(), free_at_[peer]);
    free_at_[peer] = message.begins_nanoseconds + duration(to_[peer], message.header.bytes);
  }

  static std::int64_t duration(const spec::Link& link, std::int64_t bytes) {
    if (link.bytes_per_second <= 0) return 0;
    return static_cast<std::int64_t>(static_cast<double>(bytes) / link.bytes_per_second * 1e9);
  }

  std::vector<spec::Link> to_, from_;  // by peer
  std::vector<std::int64_t> free_at_;  // by peer: when the link to it has sent all so far
  std::int64_t due_ = kForever;        // when the next piece that was looked for arrives
};

}  // namespace

std::unique_ptr<Transport> make_paced(std::unique_ptr<Transport> inner,
                                      const spec::ClusterSpec& cluster) {
  return std::make_unique<PacedTransport>(std::move(inner), cluster);
}

}  // namespace anabatic::comm
