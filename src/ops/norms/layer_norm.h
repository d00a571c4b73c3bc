// SPDX-License-Identifier: Apache-2.0
// Layer norm of each row, with a weight and a bias (Ba, Kiros and Hinton, 2016).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLayerNorm, kLayerNormInputGradient, kLayerNormWeightGradient;

}  // namespace anabatic::ops
