// SPDX-License-Identifier: Apache-2.0
// Cuts the update of a large parameter into updates of slices, whose moments, and lower halves
// (passes/split_parameters.h), are states of their own:
//
//   state %m "first_moment.w": f32[8,48,16]   ->   state %m0 "first_moment.w.slice.0": f32[4,48,16]
//                                                  state %m1 "first_moment.w.slice.1": f32[4,48,16]
//   %p, ... = optimizer_step(%w, %g, %m, ...) ->   %q, ... = optimizer_step(%w, %g, %m0, ...)
//                                                  {first_row=0}
//                                                  %p, ... = optimizer_step(%q, %g, %m1, ...)
//                                                  {first_row=192}
//
// so that a state on disk needs a window of a slice, not of a stack of experts: the slices stream
// through a few windows, one read while another is in use and a third is written. A slice is some
// matrices of a stack or some panels of one, so that its bytes are a part of the whole state's
// bytes as they lie, and of its elements in row-major order; files hold whole states
// (train/state_tiers.h). Parameters, or their upper halves, and gradients stay whole: each update
// writes its rows. Equal bits, of moments in bf16 too, whose roundings draw by the element's place
// in the parameter.
//
// Only where PassOptions::slice_bytes says how many bytes of a moment one update may take; as
// many more as keep the number of slices of all moments below a thousand or so. Slices begin too
// where PassOptions::expert_cuts has it, so that single experts are states of their own. Linear
// in nodes and slices. It stands behind apply_optimizer, which makes the updates, and before
// fuse_optimizer, which has those of a parameter in halves write its second packing too. In fp32
// packings of a sliced parameter are sweeps of their own.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kSliceOptimizer;

// "STATE.slice.N", the name of a slice of a state.
std::string slice_name(std::string_view state, std::size_t slice);

struct StateSlice {
  Name name{};
  spec::Rows rows{};
};

// A state that a graph holds in slices.
struct SlicedState {
  ir::StateRole role{};
  Name name{};                       // of the whole: "first_moment.w", "low.w"
  TensorType type{};                 // of the whole
  std::vector<StateSlice> slices{};  // ascending by rows
};
std::vector<SlicedState> sliced_states(const ir::Graph& graph);

}  // namespace anabatic::passes
