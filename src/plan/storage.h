// SPDX-License-Identifier: Apache-2.0
// Which values must share bytes, before any choice is made: a state's before and after, must_alias
// chains, and the contributions of an accumulate with their gradient state.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "spec/execution.h"

namespace anabatic::plan {

struct Storage {
  spec::Arena arena = spec::Arena::kFrame;
  std::int32_t state = -1;  // index into Graph::states
  std::int64_t bytes = 0;
  bool is_output = false;             // stays readable to the end
  std::vector<ir::ValueId> values{};  // ascending
};

struct StorageMap {
  std::vector<Storage> storages;
  std::vector<std::int32_t> of_value;  // -1: nothing touches the value
};

// InternalError where the graph cannot be laid out: an alias of a batch input, a contribution that
// cannot add in place, a state overwritten by a node that may not work in place; with external
// operands an output that is an input or a state.
StorageMap assign_storage(const ir::Graph& graph, bool external_operands = false);

// Pairs (first, second) where first must run before second in addition to data flow: readers of a
// value before the node that overwrites it, and the writers of one gradient among themselves, so
// that sums keep their order.
std::vector<std::pair<ir::NodeId, ir::NodeId>> storage_edges(const ir::Graph& graph);

// Whether one value may take the bytes of another: a quantised one lies otherwise in them.
bool have_one_format(const ir::Graph& graph, ir::ValueId a, ir::ValueId b);

// By ValueId, from the nodes themselves: a value of a removed node has kNoNode.
std::vector<ir::NodeId> producers(const ir::Graph& graph);

}  // namespace anabatic::plan
