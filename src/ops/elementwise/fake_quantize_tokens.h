// SPDX-License-Identifier: Apache-2.0
// Rounds activations to what int8 with a scale for each token holds of them: quantization-aware
// training for runtimes that quantise activations so (vLLM's dynamic int8).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

// Row t with largest magnitude m: 127 steps of m / 127 of either sign, the nearest one, to even.
// A row with m below 2^-100 is 0, one with an element that is not finite is NaN. Straight-through:
// the gradient of x is that of the result.
extern const ir::OpSchema kFakeQuantizeTokens;

}  // namespace anabatic::ops
