// SPDX-License-Identifier: Apache-2.0
// The head and the language-model loss in one op, with or without its gradients. Passes create
// these ops; model builders use linear and cross_entropy.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kHeadLoss, kHeadLossWithGradient, kHeadLossWithInputGradient;

}  // namespace anabatic::ops
