// SPDX-License-Identifier: Apache-2.0
// The rotations of query and key as one op, forward and backward, and the norms before them.
//
//   %a = rms_norm(%q, u), %b = rms_norm(%k, w)   ->   %c, %d = rope_pair(%q, %k, %t, u, w)
//   %c = rope(%a, %t), %d = rope(%b, %t)
//
//   %c = rope(%q, %t), %d = rope(%k, %t)         ->   %c, %d = rope_pair(%q, %k, %t)
//
// Bits stay equal: the norm of a head is rounded as before, but in the first cache. Norms are
// included if each is read by its rope alone, is of one head and of one epsilon.
//
// Measured in the time of one thread of a shared, busy Milan VM (AVX2), bf16, rows 2048, 8 and 4
// heads of 64: 0.56 -> 0.51 ms (1.11x), 1.82 -> 1.76 ms with norms (1.00 to 1.06x). All rotations
// of a step take 0.07 % of it, which is what an epilogue of the products could save at most.
//
// Linear in nodes, quadratic in the ropes of one table. It runs after the passes that build
// gradients, which only know rope and rms_norm.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseRope;

}  // namespace anabatic::passes
