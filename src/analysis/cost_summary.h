// SPDX-License-Identifier: Apache-2.0
// FLOPs and bytes of a graph from its types: sums of the ops' own estimates, by phase, segment and
// op.
#pragma once
#include <map>
#include <string>

#include "ir/op_schema.h"

namespace anabatic::analysis {

struct CostSummary {
  ir::Cost total;
  std::map<std::string, ir::Cost, std::less<>> by_phase, by_segment, by_op;  // keys are words of
                                                                             // the printed graph
};

// Of one micro-batch plus one update. Ragged dimensions count at their bound.
CostSummary summarize_cost(const ir::Graph& graph);

// A table, byte-stable: one line a row of each map, then the total.
std::string to_string(const CostSummary& summary);

}  // namespace anabatic::analysis
