// SPDX-License-Identifier: Apache-2.0
// What a norm takes of the rows of x, for products that apply it (spec/product_prologue.h).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAddNormStatistics, kNormStatistics;

}  // namespace anabatic::ops
