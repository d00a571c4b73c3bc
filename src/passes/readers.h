// SPDX-License-Identifier: Apache-2.0
// The readers of each value of a graph, for passes that look for patterns. Valid until a node
// changes.
#pragma once
#include <span>
#include <vector>

#include "ir/graph.h"

namespace anabatic::passes {

class Readers {
 public:
  explicit Readers(const ir::Graph& graph);

  // In the order of nodes, one entry a read.
  std::span<const ir::NodeId> of(ir::ValueId value) const {
    const std::size_t i = index(value);
    return std::span(readers_).subspan(first_[i], first_[i + 1] - first_[i]);
  }
  // Whether the graph itself needs the value: an output, the end of a state, the objective.
  bool is_wanted(ir::ValueId value) const { return is_wanted_[index(value)]; }
  // Whether nodes read the value `count` times, and there is no other reader.
  bool has_only(ir::ValueId value, std::size_t count) const {
    return !is_wanted(value) && of(value).size() == count;
  }

 private:
  std::vector<ir::NodeId> readers_;  // of the first value, then of the next
  std::vector<std::size_t> first_;   // by value: of its readers; one more at the end
  std::vector<bool> is_wanted_;      // by value
};

}  // namespace anabatic::passes
