// SPDX-License-Identifier: Apache-2.0
// The norm of all gradients: the root of the sum over sums of squares, in the order of inputs and
// elements.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kGlobalNorm;

}  // namespace anabatic::ops
