// SPDX-License-Identifier: Apache-2.0
// Rows of a table by index, and the gradient of the table.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kEmbedding, kEmbeddingWeightGradient;

}  // namespace anabatic::ops
