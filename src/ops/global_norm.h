// SPDX-License-Identifier: Apache-2.0
// The norm of all gradients from the sums of squares of each.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kGlobalNorm;

}  // namespace anabatic::ops
