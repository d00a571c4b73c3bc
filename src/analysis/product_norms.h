// SPDX-License-Identifier: Apache-2.0
// Norms of whole rows, which products may apply themselves (pass fuse_norm_linear).
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace anabatic::analysis {

// Up to so many columns and threads, a step with norms in its products takes no longer than with
// norms apart. A product in f32 or bf16 applies a norm for each block of its result, of which there
// are more beyond.
inline constexpr std::int64_t kMostNormWidth = 1024;
inline constexpr int kMostNormThreads = 4;

// A norm of whole rows: of x, or of the sum that the node computes.
struct RowNorm {
  std::string_view word;  // spec::kNorm
  bool has_sum;
  ir::ValueId x, y;
  std::vector<ir::ValueId> parameters;
};

// That of a node of the forward; none for other nodes, and for norms of heads.
std::optional<RowNorm> row_norm_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace anabatic::analysis
