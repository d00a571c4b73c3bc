// SPDX-License-Identifier: Apache-2.0
// The rule that balances experts without a loss (Wang et al., 2024): after an update, the bias that
// moves a router's choice grows for experts with fewer tokens than the mean, and shrinks for
// others.
#pragma once
#include "runtime/state_store.h"
#include "train/expert_balance.h"

namespace anabatic::train {

// Adds rate · sign(mean c − c_e) to the correction bias of every expert e of every layer that has
// one; c are the counts of the whole step. Whole numbers decide, so the bits of the biases do not
// depend on how the step was cut into micro-batches. Layers that no token reached stay.
void update_router_biases(runtime::StateStore& store, const ExpertCounts& step, double rate);

}  // namespace anabatic::train
