// SPDX-License-Identifier: Apache-2.0
// The auxiliary loss that keeps experts equally busy: of one MoE layer (Fedus et al., 2021), or, as
// transformers defines it, of all of them together. How many tokens there are follows from the
// counts, so rows that these leave out (padding) have no part in it.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLoadBalancingLoss, kLoadBalancingLossGradient;

// The same within each document (DeepSeek-AI, 2024).
extern const ir::OpSchema kSequenceBalanceLoss, kSequenceBalanceLossGradient;

}  // namespace anabatic::ops
