// SPDX-License-Identifier: Apache-2.0
// The auxiliary loss that keeps experts equally busy: for one MoE layer (Fedus et al., 2021) or, as
// in transformers, for all of them together. The number of tokens follows from the counts, so rows
// that are not counted (padding) do not affect it.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLoadBalancingLoss, kLoadBalancingLossGradient;

// The same within each document (DeepSeek-AI, 2024).
extern const ir::OpSchema kSequenceBalanceLoss, kSequenceBalanceLossGradient;

}  // namespace anabatic::ops
