// SPDX-License-Identifier: Apache-2.0
// Elementwise sum of two tensors of one type.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAdd;

}  // namespace anabatic::ops
