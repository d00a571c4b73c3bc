// SPDX-License-Identifier: Apache-2.0
#include "ir/rewrite.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "base/error.h"

namespace anabatic::ir {
namespace {

template <class Visit>
void visit_reads(Graph& graph, Visit&& visit) {
  for (Node& node : graph.nodes)
    for (ValueId& id : node.inputs) visit(id);
  for (ValueId& id : graph.outputs) visit(id);
  if (graph.objective) visit(*graph.objective);
  for (State& state : graph.states) visit(state.after);
}

template <class Visit>
void visit_definitions(Graph& graph, Visit&& visit) {
  for (ValueId& id : graph.batch) visit(id);
  for (ValueId& id : graph.step_inputs) visit(id);
  for (State& state : graph.states) visit(state.before);
  for (Node& node : graph.nodes)
    for (ValueId& id : node.outputs) visit(id);
}

void renumber_producers(Graph& graph) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const ValueId id : graph.nodes[i].outputs)
      graph.value(id).producer = NodeId{static_cast<std::uint32_t>(i)};
}

}  // namespace

void replace_uses(Graph& graph, const std::vector<ValueId>& replacement) {
  visit_reads(graph, [&](ValueId& id) { id = replacement[index(id)]; });
}

void drop_undefined_values(Graph& graph) {
  std::vector<bool> defined(graph.values.size(), false);
  visit_definitions(graph, [&](ValueId& id) { defined[index(id)] = true; });
  std::vector<ValueId> renumbered(graph.values.size(), kNoValue);
  std::vector<Value> values;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    if (!defined[i]) continue;
    renumbered[i] = ValueId{static_cast<std::uint32_t>(values.size())};
    values.push_back(std::move(graph.values[i]));
  }
  graph.values = std::move(values);
  const auto renumber = [&](ValueId& id) {
    const ValueId old = id;
    id = renumbered[index(old)];
    ANABATIC_CHECK(id != kNoValue, "[rewrite] value {} is read but its node was removed",
                   index(old));
  };
  visit_definitions(graph, renumber);
  visit_reads(graph, renumber);
  renumber_producers(graph);
}

void keep_nodes(Graph& graph, const std::vector<bool>& keep) {
  std::vector<Node> kept;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (keep[i]) kept.push_back(std::move(graph.nodes[i]));
  graph.nodes = std::move(kept);
  drop_undefined_values(graph);
}

bool remove_nodes(Graph& graph, const std::vector<bool>& keep) {
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return false;
  keep_nodes(graph, keep);
  return true;
}

void sort_nodes(Graph& graph) {
  const std::size_t num_nodes = graph.nodes.size();
  std::vector<std::size_t> producer(graph.values.size(), num_nodes);
  for (std::size_t i = 0; i < num_nodes; ++i)
    for (const ValueId id : graph.nodes[i].outputs) producer[index(id)] = i;
  std::vector<std::vector<std::size_t>> readers(num_nodes);
  std::vector<std::size_t> waiting(num_nodes, 0);
  for (std::size_t i = 0; i < num_nodes; ++i) {
    for (const ValueId id : graph.nodes[i].inputs) {
      if (producer[index(id)] == num_nodes) continue;
      readers[producer[index(id)]].push_back(i);
      ++waiting[i];
    }
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < num_nodes; ++i)
    if (waiting[i] == 0) ready.push(i);
  std::vector<Node> sorted;
  sorted.reserve(num_nodes);
  while (!ready.empty()) {
    const std::size_t i = ready.top();
    ready.pop();
    sorted.push_back(std::move(graph.nodes[i]));
    for (const std::size_t reader : readers[i])
      if (--waiting[reader] == 0) ready.push(reader);
  }
  ANABATIC_CHECK(sorted.size() == num_nodes, "[rewrite] {} nodes are on a cycle",
                 num_nodes - sorted.size());
  graph.nodes = std::move(sorted);
  renumber_producers(graph);
}

}  // namespace anabatic::ir
