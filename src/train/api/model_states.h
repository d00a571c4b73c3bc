// SPDX-License-Identifier: Apache-2.0
// The states of a model in memory as a host lists, reads and writes them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "anabatic/state.h"
#include "train/model_session.h"

namespace anabatic::train {

// Parameters and optimizer state in the order of their names.
std::vector<StateInfo> list_states(ModelSession& model);

// Elements [first, first + values.size()) of a state, row-major, as f32. InvalidArgument for a name
// or a range that is not there, Unsupported for 8-bit moments.
void read_state(ModelSession& model, const std::string& name, std::int64_t first,
                std::span<float> values);
// Likewise; Unsupported for bf16 states too. Copies and packings of the state are stale afterwards.
void write_state(ModelSession& model, const std::string& name, std::int64_t first,
                 std::span<const float> values);

// The state's memory if that holds row-major f32 numbers in one piece, else nothing.
std::span<const float> view_state(ModelSession& model, const std::string& name);

}  // namespace anabatic::train
