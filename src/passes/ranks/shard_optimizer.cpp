// SPDX-License-Identifier: Apache-2.0
#include "passes/ranks/shard_optimizer.h"

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

class OptimizerSharder {
 public:
  OptimizerSharder(Graph& graph, const PassContext& context)
      : graph_(graph),
        builder_(graph, context.find_op),
        mesh_(context.options.mesh),
        rank_(context.options.rank),
        leaves_(context.options.leaves),
        shards_(context.options.shards_optimizer) {}

  bool run() {
    const std::size_t num_nodes = graph_.nodes.size();
    for (std::size_t i = 0; shards_ && i < num_nodes; ++i)
      shard(NodeId{static_cast<std::uint32_t>(i)});
    sum_squares();
    if (removed_.empty()) return false;
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

  // The rank's place along the axes of a sum, of so many.
  struct Group {
    spec::Axes axes;
    std::int32_t place, size;
  };
  Group group_of(const ir::State& parameter) const {
    const spec::Axis axis = spec::data_axis(parameter.rows.is_whole());
    return {{axis}, spec::coordinates_of(mesh_, rank_)[axis], mesh_.size(axis)};
  }

  // Null where all ranks of the group update all of it: also where a leaf would have no part.
  std::optional<spec::Shard> shard_of(const Node& node, const spec::OptimizerStep& step,
                                      const Group& group) {
    const TensorType& moment = builder_.type(node.inputs[step.first_moment()]);
    if (group.size == 1 || step.is_slice || step.packs != spec::Packs::kNone ||
        moment.num_elements() < kSmallestSharded)
      return std::nullopt;
    const NodeId sum = graph_.value(node.inputs[step.gradient()]).producer;
    if (sum == ir::kNoNode || graph_.node(sum).op != &ops::kAllReduce) return std::nullopt;
    if (!spec::shard_of(moment, group.size * leaves_, 0)) return std::nullopt;
    return spec::shard_of(moment, group.size, group.place);
  }

  void shard(NodeId id) {
    const auto step = ops::optimizer_step_of(graph_.node(id));
    if (!step) return;
    const ir::State parameter = *state_of(graph_.node(id).inputs[0]);
    const Group group = group_of(parameter);
    const auto shard = shard_of(graph_.node(id), *step, group);
    if (!shard) return;
    const Node node = graph_.node(id);  // adding values moves nodes
    builder_.set_tag(node.tag);
    graph_.nodes[index(graph_.value(node.inputs[step->gradient()]).producer)].op =
        &ops::kReduceScatter;
    std::vector<ValueId> inputs = node.inputs;
    const auto cut_at = [&](std::size_t place) {
      inputs[place] = cut(inputs[place], *shard, parameter, group);
    };
    cut_at(step->first_moment());
    cut_at(step->second_moment());
    if (step->is_split) cut_at(step->low());
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
                                               {{"group", ops::group_attribute(group.axes)}});
    removed_.push_back(id);
  }

  // The part of a state that this rank keeps. Its rows are those of the parameter on all ranks.
  ValueId cut(ValueId whole, const spec::Shard& shard, const ir::State& parameter,
              const Group& group) {
    const ir::State state = *state_of(whole);
    const TensorType type = builder_.type(whole);
    const std::int64_t rows = type.num_elements() / type.dim(-1),
                       expert = parameter.rows.is_whole() ? 0 : parameter.rows.first / rows;
    const ValueId part = builder_.state(
        slice_name(text(state.name), static_cast<std::size_t>(expert * group.size + group.place)),
        spec::type_of(shard, type), state.role, state.owner);
    graph_.states.back().rows = {expert * rows + shard.first_row, shard.matrices * shard.rows,
                                 parameter.rows.is_whole() ? rows : parameter.rows.total};
    cut_.insert(whole);
    return part;
  }

  // The parameter whose gradient a value is.
  const ir::State& parameter_of(ValueId gradient) {
    const auto state = std::ranges::find(graph_.states, gradient, &ir::State::after);
    ANABATIC_CHECK(state != graph_.states.end(), "[shard_optimizer] value {} is no gradient",
                   index(gradient));
    return *graph_.find_state(state->owner);
  }

  // A node squares the gradients of a group, each rank its own part of each. It has a column for
  // each leaf, so that the sum does not depend on which ranks have which leaves.
  void sum_squares() {
    const auto is_op = [&](const Node& node, std::string_view name) {
      return node.op->name == name && text(node.tag.segment) == "optimizer";
    };
    const auto found = std::ranges::find_if(
        graph_.nodes, [&](const Node& node) { return is_op(node, "global_norm"); });
    ANABATIC_CHECK(found != graph_.nodes.end(), "[shard_optimizer] no norm");
    const auto norm = static_cast<std::size_t>(found - graph_.nodes.begin());
    const std::vector<ValueId> sums = graph_.nodes[norm].inputs;
    if (graph_.value(sums.front()).type.ndim() > 0) return;  // of parts already
    std::vector<ValueId> dense, of_experts;
    for (const ValueId sum : sums) {
      const NodeId id = graph_.value(sum).producer;
      ANABATIC_CHECK(id != ir::kNoNode && is_op(graph_.node(id), "sum_squares"),
                     "[shard_optimizer] a norm of value {}", index(sum));
      const ValueId gradient = graph_.node(id).inputs[0];
      (parameter_of(gradient).rows.is_whole() ? dense : of_experts).push_back(gradient);
      removed_.push_back(id);
    }
    builder_.set_tag(graph_.nodes[norm].tag);
    std::vector<ValueId> of_all_ranks;
    for (const auto& [gradients, name] :
         {std::pair{dense, kSumsOfSquares}, {of_experts, kSumsOfSquaresOfExperts}})
      if (!gradients.empty()) of_all_ranks.push_back(add_sums(gradients, name));
    graph_.nodes[norm].inputs = std::move(of_all_ranks);
    std::erase_if(graph_.outputs,
                  [&](ValueId output) { return std::ranges::find(sums, output) != sums.end(); });
  }

  ValueId add_sums(const std::vector<ValueId>& gradients, std::string_view name) {
    const Group group = group_of(parameter_of(gradients.front()));
    const std::int64_t ranks = mesh_.ranks_of_stage();
    ValueId all = builder_.add1(ops::kSumSquaresOfParts.name, gradients,
                                {{"columns", ranks * leaves_},
                                 {"column", rank_ % ranks * leaves_},
                                 {"parts", group.size * leaves_},
                                 {"part", group.place * leaves_},
                                 {"count", leaves_}});
    if (ranks > 1)
      all = builder_.add1(ops::kAllReduce.name, {all},
                          {{"group", ops::group_attribute({spec::Axis::kData})}});
    builder_.output(all, name);
    return all;
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  spec::Mesh mesh_;
  std::int32_t rank_;
  std::int64_t leaves_;                  // of each rank
  bool shards_;                          // else only the norm changes
  std::set<ValueId> cut_;                // states that parts replace
  std::map<ValueId, ValueId> gathered_;  // parameters, by the output of the whole update
  std::vector<NodeId> removed_;
};

bool shard_optimizer(Graph& graph, const PassContext& context) {
  const PassOptions& options = context.options;
  return options.with_update && options.mesh.data * options.leaves > 1 &&
         OptimizerSharder(graph, context).run();
}

}  // namespace

std::vector<Name> names_of_sums(const Graph& graph, std::string_view output) {
  std::vector<Name> names;
  const std::optional<ValueId> sums = graph.find_output(output);
  if (!sums) return names;
  const Node* node = &graph.node(graph.value(*sums).producer);
  if (node->op == &ops::kAllReduce) node = &graph.node(graph.value(node->inputs[0]).producer);
  for (const ValueId gradient : node->inputs) {
    const auto state = std::ranges::find(graph.states, gradient, &ir::State::after);
    names.push_back(state == graph.states.end() ? Name{} : state->owner);
  }
  return names;
}

const Pass kShardOptimizer{
    .name = "shard_optimizer", .needs = {"updated"}, .required = true, .run = shard_optimizer};

}  // namespace anabatic::passes
