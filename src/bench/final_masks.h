// SPDX-License-Identifier: Apache-2.0
// Measures sparse weights as they stay: what is timed comes after the last mask.
#pragma once
#include "train/sparsity/sparse_weights.h"

namespace anabatic::bench {

// The run, with masks that are chosen once, by choose_masks, and stay.
inline train::RunConfig with_final_masks(train::RunConfig run) {
  for (spec::SparseUnits& entry : run.sparsity.weights) entry.schedule = {};
  run.sparsity.is_final = !run.sparsity.weights.empty();
  return run;
}

// From the weights as they were loaded, before what is derived from them. Absent weights become 0,
// as the update before the first such step leaves them.
inline void choose_masks(train::ModelSession& session, const train::RunConfig& run,
                         const ir::Graph& training) {
  const train::SparseWeights weights(run, training);
  (void)weights.prepare(session, spec::SparsitySchedule{}.end);
  weights.clear(session);
}

}  // namespace anabatic::bench
