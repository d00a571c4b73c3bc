// SPDX-License-Identifier: Apache-2.0
#include "passes/common_subexpression.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::ValueId;

// Attributes by their text: equal for equal NaNs, different for 0.0 and -0.0.
using Key = std::tuple<std::string_view, std::vector<ValueId>, std::string>;

class Merger {
 public:
  explicit Merger(Graph& graph)
      : graph_(graph),
        replacement_(graph.values.size()),
        owns_place_(graph.values.size(), false),
        is_output_(graph.values.size(), false) {
    for (std::size_t i = 0; i < replacement_.size(); ++i)
      replacement_[i] = ValueId{static_cast<std::uint32_t>(i)};
    for (const ValueId id : graph.outputs) is_output_[index(id)] = true;
    for (const ir::State& state : graph.states) owns_place_[index(state.after)] = true;
    for (const Node& node : graph.nodes) mark_places(node);
  }

  bool run() {
    std::vector<bool> keep(graph_.nodes.size(), true);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) keep[i] = !merge(graph_.nodes[i]);
    if (std::find(keep.begin(), keep.end(), false) == keep.end()) return false;
    ir::replace_uses(graph_, replacement_);
    ir::keep_nodes(graph_, keep);
    return true;
  }

 private:
  static bool may_read(Phase reader, Phase read) {
    if (reader == Phase::kUpdate || read == Phase::kUpdate) return reader == read;
    return read <= reader;
  }

  // Contributions to a gradient, and values that a node overwrites.
  void mark_places(const Node& node) {
    if (node.op->name == "accumulate")
      for (const ValueId id : node.inputs) owns_place_[index(id)] = true;
    const ir::Aliases aliases = ir::must_alias(node);
    for (std::size_t out = 0; out < aliases.size(); ++out) {
      const int in = aliases[out];
      if (in < 0) continue;
      owns_place_[index(node.inputs[static_cast<std::size_t>(in)])] = true;
      owns_place_[index(node.outputs[out])] = true;
    }
  }

  static bool any_of(const Node& node, const std::vector<bool>& flags) {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return static_cast<bool>(flags[index(id)]); });
  }

  bool has_types_of(const Node& a, const Node& b) const {
    return std::equal(
        a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
        [&](ValueId x, ValueId y) { return graph_.value(x).type == graph_.value(y).type; });
  }

  // True if an earlier node replaces this one, which then has no readers.
  bool merge(const Node& node) {
    if (any_of(node, owns_place_)) return false;
    Key key{node.op->name, node.inputs, std::string()};
    for (ValueId& id : std::get<1>(key)) id = replacement_[index(id)];
    for (const auto& [name, value] : node.attributes)
      std::get<2>(key) += name + '=' + spec::to_string(value) + ',';
    std::vector<const Node*>& earlier = seen_[std::move(key)];
    const bool may_go = !any_of(node, is_output_);
    for (const Node* first : earlier) {
      if (!may_go) break;
      if (!may_read(node.tag.phase, first->tag.phase) || !has_types_of(*first, node)) continue;
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        replacement_[index(node.outputs[i])] = first->outputs[i];
        Name& name = graph_.value(first->outputs[i]).name;
        if (name == Name{}) name = graph_.value(node.outputs[i]).name;
      }
      return true;
    }
    earlier.push_back(&node);
    return false;
  }

  Graph& graph_;
  std::vector<ValueId> replacement_;          // by ValueId
  std::vector<bool> owns_place_, is_output_;  // by ValueId
  std::map<Key, std::vector<const Node*>> seen_;
};

bool merge_common_subexpressions(Graph& graph, const PassContext&) { return Merger(graph).run(); }

}  // namespace

const Pass kCommonSubexpression{.name = "common_subexpression", .run = merge_common_subexpressions};

}  // namespace anabatic::passes
