// SPDX-License-Identifier: Apache-2.0
#include "plan/storage.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ir/op_schema.h"
#include "plan/plan.h"

namespace anabatic::plan {
namespace {

class UnionFind {
 public:
  explicit UnionFind(std::size_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), 0u);
  }
  std::uint32_t find(ir::ValueId value) {
    std::uint32_t root = index(value);
    while (parent_[root] != root) root = parent_[root] = parent_[parent_[root]];
    return root;
  }
  void unite(ir::ValueId a, ir::ValueId b) {
    const std::uint32_t x = find(a), y = find(b);
    parent_[std::max(x, y)] = std::min(x, y);
  }

 private:
  std::vector<std::uint32_t> parent_;
};

bool may_overwrite(const ir::Node& node, std::size_t output, std::size_t input) {
  for (const ir::Aliases aliases : {ir::may_alias(node), ir::must_alias(node)})
    if (output < aliases.size() && aliases[output] == static_cast<int>(input)) return true;
  return false;
}

std::vector<std::vector<ir::NodeId>> readers(const ir::Graph& graph) {
  std::vector<std::vector<ir::NodeId>> result(graph.values.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::NodeId id{static_cast<std::uint32_t>(i)};
    if (is_accumulate(graph.node(id))) continue;
    for (ir::ValueId input : graph.node(id).inputs) {
      auto& list = result[index(input)];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return result;
}

// A node that overwrites the bytes of `value`.
struct Overwrite {
  ir::ValueId value;
  ir::NodeId node;
};

std::vector<Overwrite> overwrites(const ir::Graph& graph) {
  std::vector<Overwrite> result;
  const std::vector<ir::NodeId> producer_of = producers(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (is_accumulate(node)) continue;
    for (const int input : ir::must_alias(node))
      if (input >= 0)
        result.push_back({node.inputs[static_cast<std::size_t>(input)],
                          ir::NodeId{static_cast<std::uint32_t>(i)}});
  }
  for (const ir::State& state : graph.states) {
    if (state.before == state.after || state.kind() == ir::StateKind::kGradient) continue;
    const ir::NodeId writer = producer_of[index(state.after)];
    ANABATIC_CHECK(writer != ir::kNoNode, "[plan] state {} ends with a value that no node makes",
                   text(state.name));
    const ir::Node& node = graph.node(writer);
    const auto output = static_cast<std::size_t>(
        std::find(node.outputs.begin(), node.outputs.end(), state.after) - node.outputs.begin());
    for (std::size_t input = 0; input < node.inputs.size(); ++input)
      ANABATIC_CHECK(node.inputs[input] != state.before || may_overwrite(node, output, input),
                     "[plan] expected an op that works in place to read and write state {}, got {}",
                     text(state.name), node.op->name);
    result.push_back({state.before, writer});
  }
  return result;
}

void unite_all(const ir::Graph& graph, UnionFind& sets) {
  for (const ir::State& state : graph.states) sets.unite(state.before, state.after);
  for (const ir::Node& node : graph.nodes) {
    if (is_accumulate(node)) {
      for (ir::ValueId input : node.inputs) sets.unite(node.outputs[0], input);
      continue;
    }
    const ir::Aliases must_alias = ir::must_alias(node);
    for (std::size_t output = 0; output < must_alias.size(); ++output)
      if (const int input = must_alias[output]; input >= 0)
        sets.unite(node.outputs[output], node.inputs[static_cast<std::size_t>(input)]);
  }
}

void check_contributions(const ir::Graph& graph, const StorageMap& map) {
  const std::vector<ir::NodeId> producer_of = producers(graph);
  const auto readers_of = readers(graph);
  for (const ir::Node& node : graph.nodes) {
    if (!is_accumulate(node)) continue;
    const Storage& storage =
        map.storages[static_cast<std::size_t>(map.of_value[index(node.outputs[0])])];
    ANABATIC_CHECK(storage.arena == spec::Arena::kGradient,
                   "[plan] expected accumulate to write a gradient state, got value {}",
                   text(graph.value(node.outputs[0]).name));
    const std::string_view name = text(graph.states[static_cast<std::size_t>(storage.state)].name);
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
      const ir::ValueId value = node.inputs[i];
      const ir::NodeId producer = producer_of[index(value)];
      ANABATIC_CHECK(producer != ir::kNoNode && graph.node(producer).op->can_accumulate,
                     "[plan] expected every contribution to {} from an op that can add in place, "
                     "got {}",
                     name, producer == ir::kNoNode ? "an input" : graph.node(producer).op->name);
      ANABATIC_CHECK(graph.value(value).type == graph.value(node.outputs[0]).type,
                     "[plan] expected contributions to {} of type {}, got {}", name,
                     to_string(graph.value(node.outputs[0]).type),
                     to_string(graph.value(value).type));
      ANABATIC_CHECK(
          readers_of[index(value)].empty() &&
              std::find(graph.outputs.begin(), graph.outputs.end(), value) == graph.outputs.end(),
          "[plan] expected no other reader of a contribution to {}, got one", name);
    }
  }
}

}  // namespace

std::vector<ir::NodeId> producers(const ir::Graph& graph) {
  std::vector<ir::NodeId> result(graph.values.size(), ir::kNoNode);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (ir::ValueId output : graph.nodes[i].outputs)
      result[index(output)] = ir::NodeId{static_cast<std::uint32_t>(i)};
  return result;
}

bool have_one_format(const ir::Graph& graph, ir::ValueId a, ir::ValueId b) {
  return graph.value(a).type.blocks == graph.value(b).type.blocks;
}

StorageMap assign_storage(const ir::Graph& graph, bool external_operands) {
  UnionFind sets(graph.values.size());
  unite_all(graph, sets);
  std::vector<bool> touched(graph.values.size(), false);
  const auto touch = [&](const std::vector<ir::ValueId>& values) {
    for (ir::ValueId value : values) touched[index(value)] = true;
  };
  for (const ir::Node& node : graph.nodes) {
    touch(node.inputs);
    touch(node.outputs);
  }
  for (const auto* list : {&graph.batch, &graph.step_inputs, &graph.outputs}) touch(*list);
  for (const ir::State& state : graph.states) touch({state.before, state.after});

  StorageMap map;
  map.of_value.assign(graph.values.size(), -1);
  std::vector<std::int32_t> storage_of_root(graph.values.size(), -1);
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    if (!touched[i]) continue;
    const ir::ValueId value{static_cast<std::uint32_t>(i)};
    std::int32_t& storage = storage_of_root[sets.find(value)];
    const std::int64_t bytes = graph.value(value).type.num_bytes();
    if (storage < 0) {
      storage = static_cast<std::int32_t>(map.storages.size());
      map.storages.push_back({.bytes = bytes});
    }
    Storage& entry = map.storages[static_cast<std::size_t>(storage)];
    ANABATIC_CHECK(entry.bytes == bytes, "[plan] aliases of {} and {} bytes ({})", entry.bytes,
                   bytes, text(graph.value(value).name));
    entry.values.push_back(value);
    map.of_value[i] = storage;
  }
  const auto storage_of = [&](ir::ValueId value) -> Storage& {
    return map.storages[static_cast<std::size_t>(map.of_value[index(value)])];
  };
  for (std::size_t i = 0; i < graph.states.size(); ++i) {
    Storage& entry = storage_of(graph.states[i].before);
    ANABATIC_CHECK(entry.state < 0, "[plan] states {} and {} share bytes",
                   text(graph.states[static_cast<std::size_t>(entry.state)].name),
                   text(graph.states[i].name));
    entry.state = static_cast<std::int32_t>(i);
    entry.arena = graph.states[i].kind() == ir::StateKind::kGradient ? spec::Arena::kGradient
                                                                     : spec::Arena::kPersistent;
  }
  for (const auto* list : {&graph.batch, &graph.step_inputs})
    for (ir::ValueId value : *list) {
      Storage& entry = storage_of(value);
      ANABATIC_CHECK(entry.values.size() == 1, "[plan] input {} would be overwritten",
                     text(graph.value(value).name));
      entry.arena = external_operands ? spec::Arena::kExternal : spec::Arena::kInput;
    }
  for (ir::ValueId value : graph.outputs) {
    Storage& entry = storage_of(value);
    ANABATIC_CHECK(!external_operands || (entry.arena == spec::Arena::kFrame && !entry.is_output),
                   "[plan] expected output {} in bytes of its own, for the caller gives them",
                   text(graph.value(value).name));
    entry.is_output = true;
    if (external_operands) entry.arena = spec::Arena::kExternal;
  }
  for (const Overwrite& write : overwrites(graph))
    ANABATIC_CHECK(
        std::find(graph.outputs.begin(), graph.outputs.end(), write.value) == graph.outputs.end(),
        "[plan] output {} is overwritten by {}", text(graph.value(write.value).name),
        graph.node(write.node).op->name);
  check_contributions(graph, map);
  return map;
}

std::vector<std::pair<ir::NodeId, ir::NodeId>> storage_edges(const ir::Graph& graph) {
  std::vector<std::pair<ir::NodeId, ir::NodeId>> edges;
  const auto readers_of = readers(graph);
  for (const Overwrite& write : overwrites(graph))
    for (ir::NodeId reader : readers_of[index(write.value)])
      if (reader != write.node) edges.emplace_back(reader, write.node);

  const std::vector<ir::NodeId> producer_of = producers(graph);
  for (const ir::Node& node : graph.nodes) {
    if (!is_accumulate(node)) continue;
    std::vector<ir::NodeId> writers;
    for (std::size_t i = 1; i < node.inputs.size(); ++i)
      writers.push_back(producer_of[index(node.inputs[i])]);
    std::sort(writers.begin(), writers.end());
    for (std::size_t i = 1; i < writers.size(); ++i) {
      if (writers[i - 1] != writers[i]) edges.emplace_back(writers[i - 1], writers[i]);
    }
  }
  // A value that is overwritten twice over (before of a state and must_alias input) has equal
  // edges.
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

}  // namespace anabatic::plan
