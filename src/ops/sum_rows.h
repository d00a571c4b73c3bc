// SPDX-License-Identifier: Apache-2.0
// The sum of rows: the gradient of a bias.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSumRows;

}  // namespace anabatic::ops
