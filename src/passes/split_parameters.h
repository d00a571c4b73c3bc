// SPDX-License-Identifier: Apache-2.0
// A matrix that products read as bf16 is kept as that bf16 and 16 bits more (tensor/split_float.h):
//
//   state %w "w": f32[N,K]@panels parameter         state %w "w": bf16[N,K]@panels parameter
//   state %p "w.packed": bf16[N,K]@panels      ->   state %l "low.w": u16[N,K]@panels optimizer
//   %y = linear(%x, %p)                             %y = linear(%x, %w)
//
// so that weight and forward copy take 4 bytes an element instead of 6. The copy, in panels or in
// rows ("w.bf16" of an embedding), is the upper half, bit for bit, since weights are rounded half
// away from zero; only the update reads the lower one, which is why it is a state of its own,
// arranged and moved as moments are. Two states rather than one with a view into it: readers,
// planner and verifier meet plain types and addresses, and no byte has two names.
//
// Only under an update, where something derives from the parameter by its own layout and nothing
// reads its f32. Programs over the same states find role `upper` in PassOptions::held_states and
// follow. Files hold f32 rows, bit for bit (train/state_rows.h). Equal bits. Linear in nodes times
// states. It stands behind panel_states, which chooses layouts, and before the fusions, which read
// the weights' types; apply_optimizer takes the update that fits.
//
// Persistent bytes a parameter of bench/yardsticks, bf16, both packings: dense 15.2 -> 13.2,
// moe_coarse 15.7 -> 13.7. The update (six matrices of 1024 x 1024, one core of a shared, busy
// 2-core Milan VM, AVX2, thread CPU time) takes as long as with the parameter whole: 7.3-13.2
// against 10.6-11.8 ms.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kSplitParameters;

}  // namespace anabatic::passes
