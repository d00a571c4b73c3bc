// SPDX-License-Identifier: Apache-2.0
// A matrix, or a stack of them, in the order in which products read it (tensor/panels.h).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kPack;

}  // namespace anabatic::ops
