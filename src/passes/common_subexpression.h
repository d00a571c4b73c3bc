// SPDX-License-Identifier: Apache-2.0
// Computes equal values once. A node with the op, attributes, inputs and output types of an earlier
// one is removed. Its readers read the earlier one, which keeps its tag.
//
//   %a = rope_table(%positions)       ->   %a = rope_table(%positions)
//   %b = rope_table(%positions)            ... = rope(%q, %a)
//   ... = rope(%q, %a), rope(%k, %b)       ... = rope(%k, %a)
//
// Never merged: values with a fixed place in memory. These are values that an op overwrites
// (must_alias), that end a state, or that are accumulated into a gradient. An output keeps its own
// node, which may replace later ones. A node is never merged into a later phase, because forward
// would then wait for backward. Nor is the update merged with the rest, because frame values are
// gone when it runs. O(n log n) in nodes: in one walk, inputs are rewritten before a node is looked
// up, so chains merge. It runs after every pass that builds nodes, and before dead_code.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kCommonSubexpression;

}  // namespace anabatic::passes
