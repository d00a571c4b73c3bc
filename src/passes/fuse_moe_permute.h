// SPDX-License-Identifier: Apache-2.0
// Products of experts gather their rows from the tokens: no permuted copy is stored.
//
//   %r = permute(%x, %map) {top_k=2}
//   %h = grouped_linear_activation(%r, wg, wu, %o)          ->  ...(%x, wg, wu, %o, %map) {top_k=2}
//   %y = grouped_linear(%r, w, %o)                      ->  ...(%x, w, %o, %map)  {top_k=2}
//   %d = grouped_linear_weight_gradient(%r, %dy, %o)    ->  ...(%x, %dy, %o, %map)
//                                                           {gathered="x" top_k=2}
//
// Only where all readers of %r are such products; otherwise all read it. A product copies rows
// anyway when it packs its operand. Equal bits.
//
// Gain in `bench moe`, bf16, forward and backward, best of 5 alternating runs (thread CPU time, a
// shared Milan VM, AVX2):
//
//   8 experts 512x1536, top-2    335 -> 326 ms    arenas 108 -> 106 MB
//   64 experts 512x256, top-8    477 -> 456 ms    arenas 185 -> 175 MB
//
// Linear in nodes. It runs after fuse_activation, so that rows are gathered once for gate and up.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseMoePermute;

}  // namespace anabatic::passes
