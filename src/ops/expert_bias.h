// SPDX-License-Identifier: Apache-2.0
// The biases of the experts that a token chose, each times the router's weight, added to the
// token's row. So the experts' last product needs no bias, and that weight may move before it.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kExpertBias, kExpertBiasRouterGradient, kExpertBiasWeightGradient;

}  // namespace anabatic::ops
