// SPDX-License-Identifier: Apache-2.0
// A network that fails as it is told to, between a communicator and its transport.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport.h"
#include "device/clock.h"

namespace anabatic::testing {

enum class NetworkFault { kNone, kDelay, kReorder, kDrop, kWrongNumber };

struct NetworkFaultPlan {
  NetworkFault fault = NetworkFault::kNone;
  int after = 0;                                // messages of this rank that go well first
  int count = 1;                                // messages that do not, from then on
  std::int64_t delay_nanoseconds = 20'000'000;  // kDelay
};

class FaultyTransport : public comm::ForwardingTransport {
 public:
  FaultyTransport(std::unique_ptr<comm::Transport> inner, NetworkFaultPlan plan)
      : ForwardingTransport(std::move(inner)), plan_(plan) {}

  void send(comm::Outgoing& message) override {
    const int index = num_sent_++;
    const bool is_bad = index >= plan_.after && index < plan_.after + plan_.count;
    const NetworkFault fault = is_bad ? plan_.fault : NetworkFault::kNone;
    if (fault == NetworkFault::kDrop) return;
    if (fault == NetworkFault::kDelay || (plan_.fault == NetworkFault::kDelay && !held_.empty())) {
      held_.push_back({device::wall_nanoseconds() + plan_.delay_nanoseconds, &message});
      return;
    }
    if (fault == NetworkFault::kReorder) {
      swapped_ = &message;
      return;
    }
    if (fault == NetworkFault::kWrongNumber) ++message.header.number;
    inner().send(message);
    if (swapped_ != nullptr && swapped_->peer == message.peer)
      inner().send(*std::exchange(swapped_, nullptr));
  }

  std::int64_t sleep_nanoseconds() override {
    const std::int64_t now = device::wall_nanoseconds();
    while (!held_.empty() && held_.front().due <= now) {
      inner().send(*held_.front().message);
      held_.erase(held_.begin());
    }
    const std::int64_t others = inner().sleep_nanoseconds();
    return held_.empty() ? others : std::min(others, held_.front().due - now);
  }

 private:
  struct Held {
    std::int64_t due;
    comm::Outgoing* message;
  };
  NetworkFaultPlan plan_;
  int num_sent_ = 0;
  std::vector<Held> held_;  // in the order of send()
  comm::Outgoing* swapped_ = nullptr;
};

}  // namespace anabatic::testing
