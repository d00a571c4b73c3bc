// SPDX-License-Identifier: Apache-2.0
#include "passes/dead_code.h"

#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::ValueId;

class Liveness {
 public:
  explicit Liveness(const Graph& graph)
      : graph_(graph), node_(graph.nodes.size()), value_(graph.values.size()) {
    for (const ValueId id : graph.batch) mark(id);
    for (const ValueId id : graph.step_inputs) mark(id);
    for (const ir::State& state : graph.states) {
      mark(state.before);
      mark(state.after);
    }
    for (const ValueId id : graph.outputs) mark(id);
    if (graph.objective) mark(*graph.objective);
    while (!pending_.empty()) {
      const ValueId id = pending_.back();
      pending_.pop_back();
      visit(id);
    }
  }

  const std::vector<bool>& nodes() const { return node_; }

 private:
  void mark(ValueId id) {
    if (value_[index(id)]) return;
    value_[index(id)] = true;
    pending_.push_back(id);
  }

  void visit(ValueId id) {
    const ir::NodeId producer = graph_.value(id).producer;
    if (producer == ir::kNoNode || node_[index(producer)]) return;
    node_[index(producer)] = true;
    for (const ValueId input : graph_.node(producer).inputs) mark(input);
  }

  const Graph& graph_;
  std::vector<bool> node_, value_;  // by id
  std::vector<ValueId> pending_;
};

bool remove_dead_code(Graph& graph, const PassContext&) {
  const Liveness live(graph);
  const std::size_t num_nodes = graph.nodes.size();
  ir::keep_nodes(graph, live.nodes());
  return graph.nodes.size() != num_nodes;
}

}  // namespace

const Pass kDeadCode{.name = "dead_code", .run = remove_dead_code};

}  // namespace anabatic::passes
