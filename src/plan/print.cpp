// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <xxhash.h>

#include "ir/op_schema.h"
#include "plan/plan.h"

namespace anabatic::plan {
namespace {

std::string_view arena_name(spec::Arena arena) {
  switch (arena) {
    case spec::Arena::kPersistent:
      return "persistent";
    case spec::Arena::kFrame:
      return "frame";
    case spec::Arena::kGradient:
      return "gradient";
    case spec::Arena::kExternal:
      return "external";
    case spec::Arena::kInput:
      break;
  }
  return "input";
}

std::string_view mode_text(WriteMode mode) {
  switch (mode) {
    case WriteMode::kAssign:
      return "=";
    case WriteMode::kAccumulate:
      return "+=";
    case WriteMode::kFirstAssigns:
      break;
  }
  return "=/+=";
}

// "b3" or "b3 'loss'".
std::string operand(const ir::Graph& graph, const Plan& plan, ir::ValueId value) {
  const std::int32_t buffer = plan.buffer_of_value[index(value)];
  const std::string_view name = text(graph.value(value).name);
  return name.empty() ? fmt::format("b{}", buffer) : fmt::format("b{}:{}", buffer, name);
}

std::string buffer_line(const ir::Graph& graph, const PlannedBuffer& buffer, std::size_t i) {
  std::string line = fmt::format("  b{} {} ", i, arena_name(buffer.arena));
  if (buffer.arena == spec::Arena::kPersistent)
    line += fmt::format("{} bytes", buffer.bytes);
  else
    line += fmt::format("[{}, {})", buffer.offset, buffer.offset + buffer.bytes);
  line += fmt::format(" live [{}, {})", buffer.lifetime.begin, buffer.lifetime.end);
  if (buffer.state >= 0)
    line +=
        fmt::format(" state {}", text(graph.states[static_cast<std::size_t>(buffer.state)].name));
  return line + "\n";
}

std::string node_line(const ir::Graph& graph, const Plan& plan, const PlannedNode& planned,
                      std::int32_t position) {
  const ir::Node& node = graph.node(planned.node);
  std::string line = fmt::format("    {} n{} {} | {} (", position, index(planned.node),
                                 node_label(node), planned.kernel->name);
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    line += (i ? ", " : "") + operand(graph, plan, node.inputs[i]);
  line += ") ->";
  for (std::size_t i = 0; i < node.outputs.size(); ++i)
    line += fmt::format("{} {} {}", i ? "," : "", mode_text(planned.modes[i]),
                        operand(graph, plan, node.outputs[i]));
  if (planned.is_offloaded) line += " from disk";
  if (planned.is_exchange) line += " between ranks";
  if (planned.workspace_bytes > 0)
    line += fmt::format(
        " workspace {}[{}, {})", planned.workspace_arena == spec::Arena::kFrame ? "" : "gradient ",
        planned.workspace_offset, planned.workspace_offset + planned.workspace_bytes);
  if (planned.zero_fill != ZeroFill::kNone)
    line +=
        fmt::format(" zeroes {} by {}",
                    planned.zero_fill == ZeroFill::kAlways ? "always" : "in the first micro-batch",
                    planned.zero_kernel->name);
  return line + "\n";
}

std::string decisions(const ir::Graph& graph, const Plan& plan) {
  std::string result = fmt::format("plan {} {{\n", plan.name);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    result += buffer_line(graph, plan.buffers[i], i);
  std::int32_t position = 0;
  for (const auto& [action, order] : plan.orders) {
    result += fmt::format("  {} {{\n", spec::to_string(action));
    for (const PlannedNode& planned : order) result += node_line(graph, plan, planned, position++);
    result += "  }\n";
  }
  for (const SwapWindow& window : plan.windows)
    result += fmt::format("  disk b{} {} bytes read before {} used [{}, {}) {}\n", window.buffer,
                          window.bytes, window.read_at, window.use, window.end,
                          window.written_by == SwapWindow::kNoPosition
                              ? "written after it"
                              : fmt::format("written before {}", window.written_by));
  for (const Offload& offload : plan.offloads)
    result += offload.is_of_state()
                  ? fmt::format("  reload n{} {} bytes read [{}, {})\n", index(offload.reload),
                                offload.bytes, offload.read_at, offload.needed_at)
                  : fmt::format("  offload n{} {} bytes written [{}, {}) read [{}, {})\n",
                                index(offload.reload), offload.bytes, offload.write_at,
                                offload.written_by, offload.read_at, offload.needed_at);
  for (const Exchange& exchange : plan.exchanges)
    result += fmt::format("  exchange n{} in flight [{}, {})\n", index(exchange.node),
                          exchange.posted_at, exchange.awaited_at);
  return result;
}

}  // namespace

std::string print(const ir::Graph& graph, const Plan& plan) {
  return decisions(graph, plan) +
         fmt::format(
             "  bytes frame {} (alive at most {}) gradient {} input {} persistent {} peak "
             "{}{}\n}}\n",
             plan.frame_bytes, plan.frame_live_bytes, plan.gradient_bytes, plan.input_bytes,
             plan.persistent_bytes, plan.peak_bytes(),
             plan.disk_bytes == 0 ? "" : fmt::format(" on disk {}", plan.disk_bytes));
}

std::uint64_t hash(const ir::Graph& graph, const Plan& plan) {
  const std::string text = decisions(graph, plan);
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace anabatic::plan
