// SPDX-License-Identifier: Apache-2.0
// The readers of each value of a graph, for passes that look for patterns. Valid until a node
// changes.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace anabatic::passes {

class Readers {
 public:
  explicit Readers(const ir::Graph& graph);

  // In the order of nodes, one entry a read.
  const std::vector<ir::NodeId>& of(ir::ValueId value) const { return readers_[index(value)]; }
  // Whether the graph itself needs the value: an output, the end of a state, the objective.
  bool is_wanted(ir::ValueId value) const { return is_wanted_[index(value)]; }
  // Whether nodes read the value `count` times, and there is no other reader.
  bool has_only(ir::ValueId value, std::size_t count) const {
    return !is_wanted(value) && of(value).size() == count;
  }

 private:
  std::vector<std::vector<ir::NodeId>> readers_;  // by value
  std::vector<bool> is_wanted_;                   // by value
};

}  // namespace anabatic::passes
