// SPDX-License-Identifier: Apache-2.0
// The rotations of query and key as one op, forward and backward, and the norms before them.
//
//   %a = rms_norm(%q, u), %b = rms_norm(%k, w)   ->   %c, %d = rope_pair(%q, %k, %t, u, w)
//   %c = rope(%a, %t), %d = rope(%b, %t)
//
//   %c = rope(%q, %t), %d = rope(%k, %t)         ->   %c, %d = rope_pair(%q, %k, %t)
//
// Bits stay equal: the norm of a head is rounded as it was, but in the first cache. Norms are taken
// in where each is read by its rope alone, is of one head and of one epsilon.
//
// Linear in nodes, quadratic in the ropes of one table. It stands behind the passes that build gradients, which know rope and rms_norm
// alone.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseRope;

}  // namespace anabatic::passes
