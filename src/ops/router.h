// SPDX-License-Identifier: Apache-2.0
// The choice of experts and their weights (spec/router.h).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kRouter, kRouterGradient;

}  // namespace anabatic::ops
