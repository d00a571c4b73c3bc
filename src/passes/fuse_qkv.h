// SPDX-License-Identifier: Apache-2.0
// Query, key and value as one op each way, in segment "attention"; their widths may differ.
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
// and the weight-gradients as in fuse_gate_up, whose rules and bound hold here: one rounding takes
// the place of five. Where products have a bias, their gradients are joined alone.
//
// Measured as fuse_gate_up, rows 2048: input-gradient 1.12 (576 to 576, 192, 192) and 1.10 (512 to
// 512, 256, 256), half of that in other runs; forward and weight-gradients 1.00.
//
// Linear in nodes. It stands behind pack_weights, which knows single products alone.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseQkv;

}  // namespace anabatic::passes
