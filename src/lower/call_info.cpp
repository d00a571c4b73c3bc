// SPDX-License-Identifier: Apache-2.0
#include "lower/call_info.h"

#include <algorithm>

#include "base/error.h"
#include "lower/lower_leaves.h"
#include "lower/planned_calls.h"
#include "plan/kernel_selection.h"
#include "plan/prices.h"

namespace anabatic::lower {
namespace {

CallInfo info_of(const ir::Graph& graph, const PlannedCall& call, std::int32_t layout) {
  const ir::Node& node = graph.node(call.planned->node);
  const plan::NodeTypes types = plan::node_types(graph, node);
  CallInfo info{.action = call.action,
                .layout = layout,
                .graph = &graph,
                .node = &node,
                .position = call.position,
                .is_zero_fill = call.is_zero_fill};
  if (call.is_zero_fill) {
    info.cost = {.bytes_written = types.outputs.front().num_bytes()};
    return info;
  }
  const auto reads = [&](DType dtype) {
    return std::ranges::any_of(types.inputs,
                               [&](const TensorType& type) { return type.value_dtype() == dtype; });
  };
  if (plan::is_int8_product(graph, node))
    info.precision = spec::Precision::kInt8;
  else if (reads(DType::kBFloat16) && !reads(DType::kFloat16))
    info.precision = spec::Precision::kBf16;
  const plan::NodeTypes expected = plan::expected_types(graph, node);
  info.cost = node.op->cost(expected.inputs, expected.outputs, node.attributes);
  return info;
}

}  // namespace

std::vector<CallInfo> call_infos(const Compiled& compiled) {
  std::vector<CallInfo> infos;
  std::int32_t layout = 0;
  for (const PlannedLayout& planned : planned_layouts(compiled)) {
    for (const PlannedCall& call : planned.calls)
      infos.push_back(info_of(*planned.graph, call, layout));
    ++layout;
  }
  for (const LeafSum& sum : leaf_sums(compiled.graph, compiled.plan))
    infos.push_back(info_of(
        compiled.graph,
        {.action = spec::Action::kSumLeaf, .position = sum.position, .planned = sum.planned}, 0));
  ANABATIC_CHECK(infos.size() == compiled.program.calls.size(), "[lower] {} nodes for {} calls",
                 infos.size(), compiled.program.calls.size());
  return infos;
}

}  // namespace anabatic::lower
