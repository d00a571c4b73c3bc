// SPDX-License-Identifier: Apache-2.0
// Another dtype for the same elements, or eight bits and a scale for blocks of them.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCast, kDequantize, kQuantize;

}  // namespace anabatic::ops
