// SPDX-License-Identifier: Apache-2.0
// Softmax top-k choice of experts.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kRouter, kRouterGradient;

}  // namespace anabatic::ops
