// SPDX-License-Identifier: Apache-2.0
// Draws the initial values of a parameter.
#pragma once
#include <cstdint>
#include <span>

#include "ir/graph.h"

namespace anabatic::model {

// Elements [first, first + values.size()), row-major, of a state of this type, by `state.init`.
// Each is a function of (seed, state's name, element) alone. InvalidArgument beyond the state.
void initialize(const ir::State& state, const TensorType& type, std::int64_t first,
                std::span<float> values, std::uint64_t seed);

}  // namespace anabatic::model
