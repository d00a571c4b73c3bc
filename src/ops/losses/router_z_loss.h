// SPDX-License-Identifier: Apache-2.0
// Keeps router logits small: the mean of logsumexp squared (Zoph et al., 2022).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kRouterZLoss, kRouterZLossGradient;

}  // namespace anabatic::ops
