// SPDX-License-Identifier: Apache-2.0
// The same elements in rows of another width: x -> [elements / width, width]. A copy.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kReshape;

}  // namespace anabatic::ops
