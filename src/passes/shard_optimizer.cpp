// SPDX-License-Identifier: Apache-2.0
#include "passes/shard_optimizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "ir/rewrite.h"
#include "ops/optimizer_step.h"
#include "ops/ranks/exchange.h"
#include "ops/sum_squares.h"
#include "passes/slice_optimizer.h"
#include "spec/shards.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr spec::Axes kGroup{spec::Axis::kData};

class Sharder {
 public:
  Sharder(Graph& graph, const PassContext& context)
      : graph_(graph),
        builder_(graph, context.find_op),
        num_ranks_(context.options.mesh.size(kGroup)),
        rank_(spec::coordinates_of(context.options.mesh, context.options.rank)[spec::Axis::kData]) {
  }

  bool run() {
    const std::size_t num_nodes = graph_.nodes.size();
    for (std::size_t i = 0; i < num_nodes; ++i) shard(NodeId{static_cast<std::uint32_t>(i)});
    if (removed_.empty()) return false;
    sum_squares();
    std::erase_if(graph_.states,
                  [&](const ir::State& state) { return cut_.contains(state.before); });
    std::vector<ValueId> replacement;
    for (std::size_t i = 0; i < graph_.values.size(); ++i)
      replacement.push_back(ValueId{static_cast<std::uint32_t>(i)});
    for (const auto& [from, to] : gathered_) replacement[index(from)] = to;
    ir::replace_uses(graph_, replacement);
    std::vector<bool> keep(graph_.nodes.size(), true);
    for (const NodeId id : removed_) keep[index(id)] = false;
    ir::keep_nodes(graph_, keep);
    ir::sort_nodes(graph_);
    return true;
  }

 private:
  ir::State* state_of(ValueId before) {
    const auto found = std::ranges::find(graph_.states, before, &ir::State::before);
    return found == graph_.states.end() ? nullptr : &*found;
  }

  // Null where all ranks update all of it.
  std::optional<spec::Shard> shard_of(const Node& node, const spec::OptimizerStep& step) {
    const TensorType& moment = builder_.type(node.inputs[step.first_moment()]);
    if (step.is_slice || step.packs != spec::Packs::kNone ||
        moment.num_elements() < kSmallestSharded)
      return std::nullopt;
    const NodeId sum = graph_.value(node.inputs[step.gradient()]).producer;
    if (sum == ir::kNoNode || graph_.node(sum).op != &ops::kAllReduce) return std::nullopt;
    return spec::shard_of(moment, num_ranks_, rank_);
  }

  void shard(NodeId id) {
    const auto step = ops::optimizer_step_of(graph_.node(id));
    if (!step) return;
    const auto shard = shard_of(graph_.node(id), *step);
    if (!shard) return;
    const Node node = graph_.node(id);  // adding values moves nodes
    builder_.set_tag(node.tag);
    graph_.nodes[index(graph_.value(node.inputs[step->gradient()]).producer)].op =
        &ops::kReduceScatter;
    std::vector<ValueId> inputs = node.inputs;
    inputs[step->first_moment()] = cut(inputs[step->first_moment()], *shard);
    inputs[step->second_moment()] = cut(inputs[step->second_moment()], *shard);
    if (step->is_split) inputs[step->low()] = cut(inputs[step->low()], *shard);
    spec::Attributes attributes = node.attributes;
    attributes["first_row"] = shard->first_row;
    const std::vector<ValueId> next = builder_.add(node.op->name, inputs, std::move(attributes));
    const auto ends = [&](std::size_t input, std::size_t output) {
      state_of(inputs[input])->after = next[output];
    };
    ends(step->first_moment(), step->new_first_moment());
    ends(step->second_moment(), step->new_second_moment());
    if (step->is_split) ends(step->low(), 1);
    gathered_[node.outputs[0]] = builder_.add1(ops::kAllGather.name, {next[0]},
                                               {{"group", ops::group_attribute(kGroup)}});
    removed_.push_back(id);
  }

  // The part of a state that this rank keeps.
  ValueId cut(ValueId whole, const spec::Shard& shard) {
    const ir::State state = *state_of(whole);
    const TensorType type = builder_.type(whole);
    const ValueId part = builder_.state(slice_name(text(state.name), static_cast<std::size_t>(rank_)),
                                        spec::type_of(shard, type), state.role, state.owner);
    graph_.states.back().rows = {shard.first_row, shard.matrices * shard.rows,
                                 type.num_elements() / type.dim(-1)};
    cut_.insert(whole);
    return part;
  }

  // One node squares all gradients, each rank its own part of each.
  void sum_squares() {
    const auto is_op = [&](const Node& node, std::string_view name) {
      return node.op->name == name && text(node.tag.segment) == "optimizer";
    };
    std::vector<ValueId> gradients, sums;
    std::size_t norm = graph_.nodes.size();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (is_op(node, "global_norm")) norm = i;
      if (!is_op(node, "sum_squares")) continue;
      gradients.push_back(node.inputs[0]);
      sums.push_back(node.outputs[0]);
      removed_.push_back(NodeId{static_cast<std::uint32_t>(i)});
    }
    ANABATIC_CHECK(norm < graph_.nodes.size() && graph_.nodes[norm].inputs == sums,
                   "[shard_optimizer] a norm of {} gradients", gradients.size());
    builder_.set_tag(graph_.nodes[norm].tag);
    const ValueId parts =
        builder_.add1(ops::kSumSquaresOfParts.name, std::move(gradients),
                      {{"parts", std::int64_t{num_ranks_}},
                       {"first", std::int64_t{rank_}},
                       {"count", std::int64_t{1}}});
    const ValueId all = builder_.add1(ops::kAllReduce.name, {parts},
                                      {{"group", ops::group_attribute(kGroup)}});
    graph_.nodes[norm].inputs = {all};
    std::erase_if(graph_.outputs, [&](ValueId output) {
      return std::ranges::find(sums, output) != sums.end();
    });
    builder_.output(all, kSumsOfSquares);
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  std::int32_t num_ranks_, rank_;
  std::set<ValueId> cut_;                // states that parts replace
  std::map<ValueId, ValueId> gathered_;  // parameters, by the output of the whole update
  std::vector<NodeId> removed_;
};

bool run(Graph& graph, const PassContext& context) {
  const PassOptions& options = context.options;
  return options.with_update && options.shards_optimizer && options.mesh.size(kGroup) > 1 &&
         Sharder(graph, context).run();
}

}  // namespace

std::vector<Name> names_of_sums(const Graph& graph) {
  const auto sums = std::ranges::find(graph.nodes, &ops::kSumSquaresOfParts, &Node::op);
  std::vector<Name> names;
  if (sums == graph.nodes.end()) return names;
  for (const ValueId gradient : sums->inputs) {
    const auto state = std::ranges::find(graph.states, gradient, &ir::State::after);
    names.push_back(state == graph.states.end() ? Name{} : state->owner);
  }
  return names;
}

const Pass kShardOptimizer{
    .name = "shard_optimizer", .needs = {"updated"}, .required = true, .run = run};

}  // namespace anabatic::passes
