// SPDX-License-Identifier: Apache-2.0
// Which saved values may be kept in fewer bytes, and in how many. Read-only.
#pragma once
#include <cstdint>

#include "ir/graph.h"
#include "spec/decisions.h"

namespace anabatic::analysis {

// Activations on the way of the residual: f32 or bf16 matrices out of products, norms, sums,
// rotations, gathers and attention. Never indices, what the router decides by, log-sum-exps and
// other statistics, whose error would not stay in proportion.
bool may_compress(const ir::Graph& graph, ir::ValueId value, spec::Compression format);

// Of the type in that format, scales included.
std::int64_t compressed_bytes(const TensorType& type, spec::Compression format);

}  // namespace anabatic::analysis
