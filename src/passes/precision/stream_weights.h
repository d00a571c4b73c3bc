// SPDX-License-Identifier: Apache-2.0
// A forward program next to one that trains in another precision makes the weights that it reads
// itself, and adds no states (PassOptions::streams_weights):
//
//   state %w "w": f32[N,K]  parameter             state %w "w": f32[N,K]  parameter
//   state %p "w.packed": bf16[N,K]@panels         %p: bf16[N,K]@panels = pack(%w)
//   %y = linear(%x, %p)                       ->  %y = linear(%x, %p)
//
// It takes each derived state that PassOptions::held_states does not have as it is, such as a bf16
// packing where training holds one in int8 under the same name. The node stands in front of the
// first reader, so the frame holds the weights of a layer at most. It is that of an update or a
// refresh (derive.h), which gives equal bits.
//
// A validation takes 6 bytes of memory traffic a parameter and micro-batch more. Linear in nodes
// and states. It runs after the fusions, which look for weights that are states, and before
// reload_parameters, since the node may read a parameter on disk.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kStreamWeights;

}  // namespace anabatic::passes
