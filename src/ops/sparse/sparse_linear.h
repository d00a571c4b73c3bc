// SPDX-License-Identifier: Apache-2.0
// Products with sparse weights: linear and grouped_linear with their gradients, of the present
// blocks alone (spec/sparse_layout.h). The pass sparse_products makes them; nothing differentiates
// them.
#pragma once
#include "ir/op_schema.h"
#include "spec/sparse_layout.h"

namespace anabatic::ops {

class Check;

// Whether a pattern has weight gradients of what is present alone: those of blocks. Others are
// dense, for the update to mask.
bool has_sparse_gradient(spec::SparsityPattern pattern);
// The attribute `pattern`.
spec::SparsityPattern sparse_pattern(const Check& check);

// The types of the index and the values of a weight's layout. `weight` is a matrix or a stack.
TensorType sparse_index_type(const TensorType& weight, const spec::SparseLayout& layout);
TensorType sparse_values_type(const TensorType& weight, DType dtype,
                              const spec::SparseLayout& layout);

extern const ir::OpSchema kSparseLinear, kSparseLinearInputGradient, kSparseLinearWeightGradient,
    kGroupedSparseLinear, kGroupedSparseLinearInputGradient, kGroupedSparseLinearWeightGradient;

}  // namespace anabatic::ops
