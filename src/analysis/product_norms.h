// SPDX-License-Identifier: Apache-2.0
// Norms of whole rows, and those of them that dense products alone read. In f32 and bf16 such
// products apply the norm themselves (pass fuse_norm_linear). In int8 they read its rows, which the
// backward recomputes (plan/memory_decider.h).
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "analysis/rebuild.h"
#include "ir/graph.h"

namespace anabatic::analysis {

// Up to so many columns and threads, a step with norms in its products takes no longer than with
// norms apart. A product applies a norm for each block of its result, of which there are more
// beyond.
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

// Whether the value is of such a norm of at most kMostNormWidth columns, and products with a weight
// of all rows alone read it, as x.
bool is_norm_of_products(const ir::Graph& graph, const Rebuilder& rebuilder, ir::ValueId value);

}  // namespace anabatic::analysis
