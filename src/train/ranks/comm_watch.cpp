// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/comm_watch.h"

#include <algorithm>

namespace anabatic::train {
namespace {

double seconds(std::int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

}  // namespace

CommWatch::CommWatch(const runtime::RankContext& rank) : communicator_(rank.communicator) {
  if (communicator_ != nullptr) lost_before_.resize(communicator_->lost_nanoseconds().size());
}

void CommWatch::begin() {
  if (communicator_ == nullptr) return;
  before_ = communicator_->stats();
  std::ranges::copy(communicator_->lost_nanoseconds(), lost_before_.begin());
}

std::optional<CommMetrics> CommWatch::end() const {
  if (communicator_ == nullptr) return std::nullopt;
  const comm::CommStats took = communicator_->stats() - before_;
  CommMetrics metrics{.bytes = took.sent_bytes,
                      .busy_s = seconds(took.busy_nanoseconds),
                      .exposed_s = seconds(took.waited_nanoseconds),
                      .waited_for = std::nullopt};
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < lost_before_.size(); ++rank) {
    const std::int64_t lost = communicator_->lost_nanoseconds()[rank] - lost_before_[rank];
    if (lost > most) metrics.waited_for = static_cast<std::int64_t>(rank);
    most = std::max(most, lost);
  }
  return metrics;
}

}  // namespace anabatic::train
