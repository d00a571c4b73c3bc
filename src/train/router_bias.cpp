// SPDX-License-Identifier: Apache-2.0
#include "train/router_bias.h"

#include <fmt/core.h>

#include <numeric>
#include <vector>

#include "base/name.h"
#include "model/model_spec.h"
#include "train/state_tiers.h"

namespace anabatic::train {

void update_router_biases(runtime::StateStore& store, const ExpertCounts& step, double rate) {
  if (rate == 0) return;
  StateCursor cursor(store);
  std::vector<float> biases(step.num_experts());
  for (std::size_t i = 0; i < step.num_layers(); ++i) {
    const Name state = intern(fmt::format("layers.{}.{}", step.layer(i), model::kCorrectionBias));
    if (!store.has(state)) continue;
    const auto counts = step.of_layer(i);
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
                       num_experts = std::ssize(counts);
    cursor.read(state, 0, biases);
    for (std::size_t e = 0; e < biases.size(); ++e) {
      const std::int64_t above = sum - counts[e] * num_experts;  // (mean − count) · experts
      if (above != 0) biases[e] += static_cast<float>(above > 0 ? rate : -rate);
    }
    cursor.write(state, 0, biases);
  }
  cursor.flush();
}

}  // namespace anabatic::train
