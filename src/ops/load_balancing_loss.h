// SPDX-License-Identifier: Apache-2.0
// The auxiliary loss that keeps experts equally busy, over all MoE layers together.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLoadBalancingLoss, kLoadBalancingLossGradient;

}  // namespace anabatic::ops
