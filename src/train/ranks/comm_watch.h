// SPDX-License-Identifier: Apache-2.0
// What the exchanges of a step take at one rank.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "anabatic/events.h"
#include "comm/communicator.h"
#include "runtime/exchange_driver.h"

namespace anabatic::train {

class CommWatch {
 public:
  // The communicator must outlive it.
  explicit CommWatch(const runtime::RankContext& rank);

  void begin();
  // Since begin(); nothing with one rank.
  std::optional<CommMetrics> end() const;

 private:
  const comm::Communicator* communicator_;
  comm::CommStats before_{};
  std::vector<std::int64_t> lost_before_;  // by rank
};

}  // namespace anabatic::train
