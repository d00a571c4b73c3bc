// SPDX-License-Identifier: Apache-2.0
// Cuts the update of a large parameter into updates of slices. The moments of a slice, and its
// lower 16 bits (passes/split_parameters.h), are states of their own:
//
//   state %m "first_moment.w": f32[8,48,16]   ->   state %m0 "first_moment.w.slice.0": f32[4,48,16]
//                                                  state %m1 "first_moment.w.slice.1": f32[4,48,16]
//   %p, ... = optimizer_step(%w, %g, %m, ...) ->   %q, ... = optimizer_step(%w, %g, %m0, ...)
//                                                  {first_row=0}
//                                                  %p, ... = optimizer_step(%q, %g, %m1, ...)
//                                                  {first_row=192}
//
// A state on disk then needs a window of one slice, not of a stack of experts. The slices stream
// through a few windows: one is read while another is in use and a third is written.
//
// A slice is some matrices of a stack, or some panels of one matrix. So it is a contiguous part of
// the whole state, both in panels and in row-major order. Files hold whole states
// (train/state_tiers.h). Parameters, or their upper 16 bits, and gradients are not cut: each update
// writes its rows. Equal bits, also of bf16 moments: their stochastic rounding draws by the
// element's place in the parameter.
//
// PassOptions::slice_bytes is the most bytes of a moment that one update takes; 0 cuts nothing.
// Large models take more, so that there are about a thousand slices of moments at most. Slices also
// begin at PassOptions::expert_cuts, so that single experts are states of their own. Linear in
// nodes and slices. It runs after apply_optimizer, which adds the updates, and before
// fuse_optimizer. That pass lets updates of upper and lower 16 bits write the second packing too.
// In fp32 a sliced parameter is packed by separate sweeps.
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
  Name name{};                       // of the whole state: "first_moment.w", "low.w"
  TensorType type{};                 // of the whole state
  std::vector<StateSlice> slices{};  // ascending by rows
};
std::vector<SlicedState> sliced_states(const ir::Graph& graph);

}  // namespace anabatic::passes
