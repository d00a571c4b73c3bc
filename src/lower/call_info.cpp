// SPDX-License-Identifier: Apache-2.0
#include "lower/call_info.h"

#include <algorithm>

#include "base/error.h"
#include "plan/kernel_selection.h"

namespace anabatic::lower {

namespace {

std::vector<CallInfo> infos_of(const ir::Graph& graph, const std::vector<plan::PlannedNode>& order,
                               const std::vector<runtime::Call>& calls) {
  std::vector<CallInfo> infos;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const plan::PlannedNode& planned = order[position];
    if (planned.is_offloaded) continue;
    const ir::Node& node = graph.node(planned.node);
    const plan::NodeTypes types = plan::node_types(graph, node);
    if (planned.zero_fill != plan::ZeroFill::kNone)
      infos.push_back({.node = &node,
                       .position = position,
                       .is_zero_fill = true,
                       .cost = {.bytes_written = types.outputs.front().num_bytes()}});
    infos.push_back({.node = &node,
                     .position = position,
                     .is_bf16 = std::any_of(
                         types.inputs.begin(), types.inputs.end(),
                         [](const TensorType& type) { return type.dtype == DType::kBFloat16; }),
                     .cost = node.op->cost(types.inputs, types.outputs, node.attributes)});
  }
  ANABATIC_CHECK(infos.size() == calls.size(), "[lower] {} nodes for {} calls", infos.size(),
                 calls.size());
  return infos;
}

}  // namespace

std::vector<ProgramPart> parts_of(const Compiled& compiled) {
  std::vector<ProgramPart> result;
  for (const auto& [action, calls] : compiled.program.calls)
    result.push_back({action, false, &compiled.graph, &calls,
                      infos_of(compiled.graph, compiled.plan.orders.at(action), calls)});
  if (compiled.first)
    for (const auto& [action, calls] : compiled.program.first.calls)
      result.push_back(
          {action, true, &compiled.first->graph, &calls,
           infos_of(compiled.first->graph, compiled.first->plan.orders.at(action), calls)});
  return result;
}

}  // namespace anabatic::lower
