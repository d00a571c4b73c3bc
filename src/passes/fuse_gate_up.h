// SPDX-License-Identifier: Apache-2.0
// Gate and up of a dense or sparse MLP as one op in each direction, in segments "mlp" and
// "experts".
//
//   %g = linear(%x, wg), %u = linear(%x, wu)     ->   %g, %u = linear_many(%x, wg, wu)
//
//   %a = linear_input_gradient(%dg, wg)          ->   %d = linear_many_input_gradient(%dg, wg,
//   %b = linear_input_gradient(%du, wu)                      %du, wu)
//   %d = add(%a, %b)
//
//   %w = linear_weight_gradient(%x, %dg)         ->   %w, %v = linear_many_weight_gradient(%x,
//   %v = linear_weight_gradient(%x, %du)                     %dg, %du)
//
// and likewise grouped_linear. Products and weight gradients keep their bits. An input gradient is
// rounded once, not three times: where the storage dtype has unit roundoff u, the two differ by at
// most u (|a| + |b|) + 2 u |a + b|, plus the effect of the order of a sum in f32.
//
// A product with a bias, or with a weight that a node computes, is not changed; nor is a
// contribution to a gradient that has others.
//
// Measured in the time of one thread of a shared, busy Milan VM (AVX2), bf16, both weights packed,
// separate over joined: input-gradient 1.02 at 512 rows an expert of 512 x 1536, 1.09 at 256 rows
// of 512 x 256, 1.11 at 16 rows, 1.05 dense 2048 x 576 x 1536; forward 1.00 to 1.05.
// Weight-gradients gain nothing on one thread (0.96 to 1.05 in runs that differ by as much). Other
// runs showed half of the gains.
//
// Linear in nodes. It runs after pack_weights, which only knows single products.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseGateUp;

}  // namespace anabatic::passes
