// SPDX-License-Identifier: Apache-2.0
// The head and the language-model loss in one op, alone and with its gradients. Passes make them;
// model builders write linear and cross_entropy.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kHeadLoss, kHeadLossWithGradient;

}  // namespace anabatic::ops
