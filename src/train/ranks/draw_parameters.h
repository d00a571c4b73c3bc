// SPDX-License-Identifier: Apache-2.0
// Initial values of parameters, from a seed. Each rank draws an equal part of all elements and gets
// the others from their ranks. The values do not depend on how many ranks there are.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "ir/graph.h"
#include "runtime/exchange_driver.h"
#include "runtime/state_store.h"

namespace anabatic::train {

// Draws the parameters by their rules and gives them to `write`, elements from `first` on in
// ascending order. All ranks call it with the same ones in the same order.
void draw_parameters(std::span<const ir::State> parameters, const runtime::StateStore& store,
                     const runtime::RankContext& rank, std::uint64_t seed,
                     const std::function<void(Name state, std::int64_t first,
                                              std::span<const float> values)>& write);

}  // namespace anabatic::train
