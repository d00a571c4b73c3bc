// SPDX-License-Identifier: Apache-2.0
// One sweep over a parameter updates it and writes both packings of its new value:
//
//   %p, %m, %v = adamw(...)
//   %a = pack(%p)  {layout="panels"}              ->   %p, %m, %v, %a, %b = adamw_pack(...)
//   %b = pack(%p)  {layout="panels_transposed"}
//
// where both packings have one dtype; other readers of %p (the cast of a tied embedding) stay.
// Equal bits. Linear in nodes. It stands right behind apply_optimizer, which makes these nodes.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseOptimizer;

}  // namespace anabatic::passes
