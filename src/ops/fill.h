// SPDX-License-Identifier: Apache-2.0
// A constant tensor.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kFill;

}  // namespace anabatic::ops
