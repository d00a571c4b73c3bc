// SPDX-License-Identifier: Apache-2.0
// With policy mixed, gradients of activations are f16 in place of bf16; the forward stays bf16, and
// weight gradients f32:
//
//   %dx: bf16[T,K] = linear_input_gradient(%dy, %w)  ->  %dx: f16[T,K] = linear_input_gradient(%dy,
//   %w) %dw: f32[N,K] = linear_weight_gradient(%x, %dy)      (%dy and %dx in f16, %x and %w in
//   bf16)
//
// It changes results. Linear in nodes. It runs right after differentiate, which takes the dtypes of
// gradients from the activations, so that fusions meet the final ones. A head that is fused with
// its loss rounds its gradient dx to f16, and keeps those of its logits as it has them.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kHalfGradients;

}  // namespace anabatic::passes
