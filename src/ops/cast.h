// SPDX-License-Identifier: Apache-2.0
// Another dtype for the same elements, eight bits and a scale for blocks of them, or the same bytes
// from where they waited off memory.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCast, kDequantize, kQuantize, kReload;

}  // namespace anabatic::ops
