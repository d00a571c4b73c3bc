// SPDX-License-Identifier: Apache-2.0
#include "passes/dead_code.h"

#include <set>
#include <string>

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
  const std::set<std::string, std::less<>>& symbols() const { return symbols_; }

 private:
  void mark(ValueId id) {
    if (value_[index(id)]) return;
    value_[index(id)] = true;
    pending_.push_back(id);
  }

  void visit(ValueId id) {
    for (const Dim& dim : graph_.value(id).type.shape) {
      if (!dim.symbol) continue;
      symbols_.emplace(text(*dim.symbol));
      mark(graph_.symbols.find(text(*dim.symbol))->second);
    }
    const ir::NodeId producer = graph_.value(id).producer;
    if (producer == ir::kNoNode || node_[index(producer)]) return;
    node_[index(producer)] = true;
    // A kept node defines all its outputs, so their sizes are needed too.
    for (const ValueId output : graph_.node(producer).outputs) mark(output);
    for (const ValueId input : graph_.node(producer).inputs) mark(input);
  }

  const Graph& graph_;
  std::vector<bool> node_, value_;  // by id
  std::set<std::string, std::less<>> symbols_;
  std::vector<ValueId> pending_;
};

bool run(Graph& graph, const PassContext&) {
  const Liveness live(graph);
  const std::size_t num_nodes = graph.nodes.size(), num_symbols = graph.symbols.size();
  for (auto symbol = graph.symbols.begin(); symbol != graph.symbols.end();)
    symbol =
        live.symbols().count(symbol->first) == 1 ? std::next(symbol) : graph.symbols.erase(symbol);
  ir::keep_nodes(graph, live.nodes());
  return graph.nodes.size() != num_nodes || graph.symbols.size() != num_symbols;
}

}  // namespace

const Pass kDeadCode{.name = "dead_code", .run = run};

}  // namespace anabatic::passes
