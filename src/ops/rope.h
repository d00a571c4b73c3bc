// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in the rotate-half form (Su et al., 2021), and its table.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kRope, kRopeTable;

}  // namespace anabatic::ops
