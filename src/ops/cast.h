// SPDX-License-Identifier: Apache-2.0
// Another dtype for the same elements.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCast;

}  // namespace anabatic::ops
