// SPDX-License-Identifier: Apache-2.0
// Products of experts read rows of tokens where they lie: the permuted copy never stands.
//
//   %r = permute(%x, %map) {top_k=2}
//   %h = grouped_linear_activation(%r, wg, wu, %o)          ->  ...(%x, wg, wu, %o, %map) {top_k=2}
//   %y = grouped_linear(%r, w, %o)                      ->  ...(%x, w, %o, %map)  {top_k=2}
//   %d = grouped_linear_weight_gradient(%r, %dy, %o)    ->  ...(%x, %dy, %o, %map)
//                                                           {gathered="x" top_k=2}
//
// Only where all that read %r are such products; otherwise it stands, and all read it. Rows are
// copied when a product packs its operand in any case: bits stay equal.
//
// Gain, `bench moe`, bf16, one thread's own time on a shared Milan VM (AVX2), best of 5 alternating
// runs, 8 experts 512x1536 top-2 and 64 experts 512x256 top-8, forward and backward: 335 ->
// 326 ms and 477 -> 456 ms; arenas 108 -> 106 MB and 185 -> 175 MB.
//
// Linear in nodes. It stands behind fuse_activation, so that rows are gathered once for gate and
// up.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseMoePermute;

}  // namespace anabatic::passes
