// SPDX-License-Identifier: Apache-2.0
// Which saved values may be kept in fewer bytes, in how many, and by which ops. Read-only.
#pragma once
#include <cstdint>
#include <string_view>

#include "ir/graph.h"
#include "spec/decisions.h"

namespace anabatic::analysis {

// Activations on the way of the residual: f32 or bf16 matrices out of products, norms, sums,
// rotations, gathers and attention. Never indices, what the router decides by, log-sum-exps and
// other statistics, whose error would not stay in proportion.
bool may_compress(const ir::Graph& graph, ir::ValueId value, spec::Compression format);

// Of the type in that format, scales included.
std::int64_t compressed_bytes(const TensorType& type, spec::Compression format);

struct Conversion {
  std::string_view op;
  spec::Attributes attributes{};
};

// To the format, of which kNone has none; and from it, back to `dtype`.
Conversion compression_to(spec::Compression format);
Conversion decompression_from(spec::Compression format, DType dtype);

}  // namespace anabatic::analysis
