// SPDX-License-Identifier: Apache-2.0
// Computes equal things once: a node with the op, attributes, inputs and output types of an earlier
// one goes, and its readers read the earlier one, which keeps its tag.
//
//   %a = rope_table(%positions)       ->   %a = rope_table(%positions)
//   %b = rope_table(%positions)            ... = rope(%q, %a)
//   ... = rope(%q, %a), rope(%k, %b)       ... = rope(%k, %a)
//
// Never merged: values that own a place in memory, which are those that an op overwrites
// (must_alias), that end a state, or that are accumulated into a gradient. An output keeps its own
// node, which may stand for later ones. Never merged into a later phase, for forward would then
// wait for backward; nor the update with the rest, because frame values are gone when it runs.
// O(n log n) in nodes: in one walk, inputs are rewritten before a node is looked up, so chains
// merge. It stands after every pass that builds nodes, and before dead_code.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kCommonSubexpression;

}  // namespace anabatic::passes
