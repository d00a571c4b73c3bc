// SPDX-License-Identifier: Apache-2.0
#include "lower/lower_leaves.h"

#include "base/error.h"
#include "ir/op_schema.h"
#include "ops/accumulate.h"
#include "spec/step.h"

namespace anabatic::lower {

std::vector<LeafSum> leaf_sums(const ir::Graph& graph, const plan::Plan& plan) {
  std::vector<LeafSum> sums;
  std::int32_t position = -1;
  for (const auto& [action, order] : plan.orders)
    for (const plan::PlannedNode& planned : order) {
      ++position;
      const ir::Node& node = graph.node(planned.node);
      if (node.op != &ops::kSumLeaves) continue;
      for (std::size_t level = 0; level + 1 < node.inputs.size(); ++level)
        sums.push_back({&planned, position, level});
    }
  return sums;
}

void add_leaves(const ir::Graph& graph, const plan::Plan& plan, const OperandOf& operand_of,
                runtime::Program& program) {
  std::vector<runtime::Variant> levels;
  for (const LeafSum& sum : leaf_sums(graph, plan)) {
    const plan::PlannedNode& planned = *sum.planned;
    const ir::Node& node = graph.node(planned.node);
    ANABATIC_CHECK(planned.workspace_bytes == 0 && planned.kernel->prepare == nullptr,
                   "[lower] {} needs more than its operands", planned.kernel->name);
    program.leaves = spec::get_int(node.attributes, "leaves");
    levels.resize(static_cast<std::size_t>(spec::num_levels(program.leaves)),
                  {.places = spec::kEveryPlace});
    ANABATIC_CHECK(node.inputs.size() == levels.size() + 1, "[lower] {}: {} levels of {} leaves",
                   plan::node_label(node), node.inputs.size() - 1, program.leaves);
    // The leaf and the levels below become this level.
    runtime::Call call{.kernel = planned.kernel,
                       .attributes = node.attributes,
                       .outputs = {operand_of(node.inputs[sum.level + 1])},
                       .adds = {false},
                       .label = fmt::format("{} level {}", plan::node_label(node), sum.level)};
    for (std::size_t i = 0; i <= sum.level; ++i) call.inputs.push_back(operand_of(node.inputs[i]));
    levels[sum.level].calls.push_back(static_cast<std::int32_t>(program.calls.size()));
    program.calls.push_back(std::move(call));
  }
  if (!levels.empty()) program.variants[spec::Action::kSumLeaf] = std::move(levels);
}

}  // namespace anabatic::lower
