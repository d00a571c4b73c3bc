// SPDX-License-Identifier: Apache-2.0
// What the ranks of a planned step exchange, before anything runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "lower/compile.h"
#include "spec/mesh.h"

namespace anabatic::train {

struct PlannedExchange {
  std::string name;  // of the gradient or state; else what it is for, "layers.3.experts ..."
  comm::ExchangeKind kind{};
  comm::Method method{};
  std::string reason;           // for the method
  spec::Axes axes{};            // of its group
  std::int32_t num_ranks = 1;   // of the group
  std::int64_t bytes = 0;       // of the tensor; of rows, those of a rank's tokens
  std::int64_t sent_bytes = 0;  // by a rank each time, the mean of its group
  std::int64_t count = 0;       // a step
};

// In the order of their posts.
std::vector<PlannedExchange> planned_exchanges(const lower::Compiled& training,
                                               const spec::Mesh& mesh,
                                               std::int64_t num_micro_batches);

// The name without the number of its layer: "gradients.layers.*.experts.up".
std::string over_layers(const std::string& name);

// That a rank sends in a step.
std::int64_t sent_bytes(const std::vector<PlannedExchange>& exchanges);

// One line for those that differ in their layer alone: for people.
std::string to_string(const std::vector<PlannedExchange>& exchanges);

}  // namespace anabatic::train
