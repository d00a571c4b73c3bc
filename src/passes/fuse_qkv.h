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
// Linear in nodes. It stands behind pack_weights, which knows single products alone.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseQkv;

}  // namespace anabatic::passes
