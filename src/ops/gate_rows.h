// SPDX-License-Identifier: Apache-2.0
// Rows times the sigmoid of one number each, as a gated shared expert has them.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kGateRows, kGateRowsGradient;

}  // namespace anabatic::ops
