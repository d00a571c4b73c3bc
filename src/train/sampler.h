// SPDX-License-Identifier: Apache-2.0
// Draws the next token from logits.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

class Sampler {
 public:
  Sampler(const RunConfig::Generate& options, std::int64_t vocabulary);

  // `position` numbers the draw: equal (seed, position, logits) give equal tokens. Greedy at
  // temperature 0: the lowest id among the largest logits. Otherwise softmax(logits / temperature)
  // over the top_k likeliest, then over the smallest set of them whose mass reaches top_p.
  // InvalidArgument when a logit is NaN.
  std::int32_t next(std::span<const float> logits, std::int64_t position);

 private:
  RunConfig::Generate options_;
  std::vector<std::int32_t> order_;
  std::vector<double> weights_;
};

}  // namespace anabatic::train
