// SPDX-License-Identifier: Apache-2.0
// Helpers of passes that replace and remove: one walk over every place that holds a value id.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace anabatic::ir {

// Every read of v becomes a read of replacement[v]: node inputs, outputs, objective, ends of
// states. `replacement` is indexed by ValueId and already transitive. Definitions do not change.
void replace_uses(Graph& graph, const std::vector<ValueId>& replacement);

// Removes the nodes whose keep[NodeId] is false, and every value that nothing defines any more;
// renumbers both in their order. A kept reader of a removed value is an InternalError.
void keep_nodes(Graph& graph, const std::vector<bool>& keep);
// The same; false, and the graph as it was, where all are kept.
bool remove_nodes(Graph& graph, const std::vector<bool>& keep);
// Removes every value that nothing defines any more.
void drop_undefined_values(Graph& graph);

// Sorts nodes into a topological order, stable for nodes that are in order. For passes that append
// a producer after its reader. InternalError on a cycle.
void sort_nodes(Graph& graph);

}  // namespace anabatic::ir
