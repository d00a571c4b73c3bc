// SPDX-License-Identifier: Apache-2.0
// The derived states of a sparse weight (spec/sparse_layout.h): its index, which follows from the
// mask alone, and its values, which follow from the weight and the index.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kPackSparse, kSparseIndex;

}  // namespace anabatic::ops
