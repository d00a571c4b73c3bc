// SPDX-License-Identifier: Apache-2.0
// What the workspace of a router holds, which kernel and planner count alike.
#pragma once
#include "spec/router.h"

namespace anabatic::kernels::cpu {

// Arrays [E] of 4-byte elements for each block of rows: counts and sums, and where scores are
// compared or are no probabilities, four of a row.
inline std::int64_t router_block_arrays(const spec::RouterForm& form) {
  return form.chooses_by_logits() && form.score == spec::RouterScore::kSoftmax ? 2 : 6;
}

}  // namespace anabatic::kernels::cpu
