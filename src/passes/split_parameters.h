// SPDX-License-Identifier: Apache-2.0
// A matrix that products read as bf16 is kept as two states, upper and lower 16 bits
// (tensor/split_float.h):
//
//   state %w "w": f32[N,K]@panels parameter         state %w "w": bf16[N,K]@panels parameter
//   state %p "w.packed": bf16[N,K]@panels      ->   state %l "low.w": u16[N,K]@panels optimizer
//   %y = linear(%x, %p)                             %y = linear(%x, %w)
//
// Weight and forward copy then take 4 bytes an element instead of 6. The copy, in panels or in rows
// ("w.bf16" of an embedding), equals the upper 16 bits, since weights are rounded half away from
// zero. Only the update reads the lower 16 bits, so they are a state of their own, laid out and
// moved as moments are. Readers, planner and verifier meet plain types and addresses.
//
// Only where the program updates the parameter, a bf16 copy has the parameter's own layout, and
// nothing reads it as f32. Programs over the same states find role `upper` in
// PassOptions::held_states and do the same. Files hold f32 rows, bit for bit (train/state_rows.h).
// Equal bits. Linear in nodes times states. It runs after panel_states, which chooses layouts, and
// before the fusions, which read the weights' types. apply_optimizer chooses the matching update.
//
// Persistent bytes a parameter of bench/yardsticks, bf16, both packings: dense 15.2 -> 13.2,
// moe_coarse 15.7 -> 13.7. The update of six matrices of 1024 x 1024 takes 7.3-13.2 ms, in fp32
// 10.6-11.8 ms. This is thread CPU time on a core of a shared, busy 2-core Milan VM (AVX2).
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kSplitParameters;

}  // namespace anabatic::passes
