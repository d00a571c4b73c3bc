// SPDX-License-Identifier: Apache-2.0
#include "bench/call_info.h"

#include <algorithm>

#include "base/error.h"
#include "plan/kernel_selection.h"

namespace anabatic::bench {

CallInfos call_infos(const lower::Compiled& compiled) {
  CallInfos result;
  for (const auto& [action, order] : compiled.plan.orders) {
    std::vector<CallInfo>& infos = result[static_cast<std::size_t>(action)];
    for (const plan::PlannedNode& planned : order) {
      const ir::Node& node = compiled.graph.node(planned.node);
      const plan::NodeTypes types = plan::node_types(compiled.graph, node);
      if (planned.zero_fill != plan::ZeroFill::kNone)
        infos.push_back({.node = &node,
                         .is_zero_fill = true,
                         .cost = {.bytes_written = types.outputs.front().num_bytes()}});
      infos.push_back({.node = &node,
                       .is_bf16 = std::any_of(
                           types.inputs.begin(), types.inputs.end(),
                           [](const TensorType& type) { return type.dtype == DType::kBFloat16; }),
                       .cost = node.op->cost(types.inputs, types.outputs, node.attributes)});
    }
    ANABATIC_CHECK(infos.size() == compiled.program.calls.at(action).size(),
                   "[bench] {} nodes for {} calls", infos.size(),
                   compiled.program.calls.at(action).size());
  }
  return result;
}

}  // namespace anabatic::bench
