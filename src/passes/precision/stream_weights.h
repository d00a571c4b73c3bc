// SPDX-License-Identifier: Apache-2.0
// Weights in the form that products read become nodes in front of these products, and are no
// states. That is in two kinds of programs:
//
// - A forward program next to one that trains in another precision makes what it reads itself, and
//   adds no states (PassOptions::streams_weights).
// - Training without PassOptions::keep_packings makes its packings, of both directions.
//
//   state %w "w": f32[N,K]  parameter             state %w "w": f32[N,K]  parameter
//   state %p "w.packed": bf16[N,K]@panels         %p: bf16[N,K]@panels = pack(%w)
//   %y = linear(%x, %p)                       ->  %y = linear(%x, %p)
//
// The first takes each derived state that PassOptions::held_states does not have as it is, such as
// a bf16 packing where training holds one in int8 under the same name. The second takes packings
// alone. The node stands in front of the first reader, so the frame holds the weights of a layer at
// most. The backward has a node of its own, in phase `recompute`. Nodes are those of an update or a
// refresh (derive.h), which gives equal bits.
//
// A validation takes 6 bytes of memory traffic a parameter and micro-batch more, training in int8
// 10. Linear in nodes and states. It runs after the fusions, which look for weights that are
// states, before pack_again, which would keep a first packing, and before reload_parameters, since
// the node may read a parameter on disk.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kStreamWeights;

}  // namespace anabatic::passes
