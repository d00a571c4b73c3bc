// SPDX-License-Identifier: Apache-2.0
// The action between the leaves of a step (spec/step.h): a variant for each level of the tree. Each
// calls the kernel of the graph's `sum_leaves` for every gradient:
//
//   level 0: leaf_sums.w.0 = gradients.w
//   level 1: leaf_sums.w.1 = gradients.w + leaf_sums.w.0
#pragma once
#include <cstddef>
#include <vector>

#include "ir/graph.h"
#include "lower/lower_exchanges.h"
#include "plan/plan.h"
#include "runtime/program.h"

namespace anabatic::lower {

// A call of the action.
struct LeafSum {
  const plan::PlannedNode* planned = nullptr;  // of `sum_leaves`
  std::int32_t position = 0;                   // of that node in the plan's orders
  std::size_t level = 0;
};

// In the order of the calls; none where a step has one leaf. Points into `plan`.
std::vector<LeafSum> leaf_sums(const ir::Graph& graph, const plan::Plan& plan);

// Adds these calls and their variants after the others.
void add_leaves(const ir::Graph& graph, const plan::Plan& plan, const OperandOf& operand_of,
                runtime::Program& program);

}  // namespace anabatic::lower
