// SPDX-License-Identifier: Apache-2.0
// Query, key and value as one op in each direction, in segment "attention"; their widths may
// differ.
//
//   %q = linear(%x, wq)                          ->   %q, %k, %v = linear_many(%x, wq, wk, wv)
//   %k = linear(%x, wk), %v = linear(%x, wv)
//
//   %a = linear_input_gradient(%dv, wv)          ->   %d = linear_many_input_gradient(%dv, wv,
//   %b = linear_input_gradient(%dk, wk)                      %dk, wk, %dq, wq)
//   %c = add(%a, %b)
//   %e = linear_input_gradient(%dq, wq)
//   %d = add(%c, %e)
//
// and the weight gradients as in fuse_gate_up, whose rules and bound apply here: one rounding
// replaces five. If products have a bias, only their gradients are joined: there is the gain, as
// the figures show.
//
// Measured as fuse_gate_up, rows 2048: input-gradient 1.12 (576 to 576, 192, 192) and 1.10 (512 to
// 512, 256, 256), half of that in other runs; forward and weight-gradients 1.00.
//
// Linear in nodes. It runs after pack_weights, which only knows single products.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseQkv;

}  // namespace anabatic::passes
