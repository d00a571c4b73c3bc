// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in the rotate-half form (Su et al., 2021), and its table.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

// kRopePair: two ropes of one table, with or without norms, as a pass joins them.
extern const ir::OpSchema kRope, kRopePair, kRopeTable;

}  // namespace anabatic::ops
