// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.h"

#include <fmt/core.h>

namespace anabatic::runtime {
namespace {

std::string print(const Program& program, const Operand& operand) {
  std::string place;
  switch (operand.arena) {
    case Arena::kPersistent:
      place = text(program.states[static_cast<std::size_t>(operand.state)].name);
      break;
    case Arena::kFrame:
      place = fmt::format("frame+{}", operand.offset);
      break;
    case Arena::kGradient:
      place = fmt::format("gradient+{}", operand.offset);
      break;
    case Arena::kInput:
      place = fmt::format("input+{}", operand.offset);
      break;
  }
  return place + " " + to_string(operand.type);
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

std::string print(const Program& program, const Call& call) {
  std::string line = fmt::format("    {} | {} (", call.label, call.kernel->name);
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    line += (i ? ", " : "") + print(program, call.inputs[i]);
  line += ") ->";
  for (std::size_t i = 0; i < call.outputs.size(); ++i)
    line += fmt::format("{} {} {}", i ? "," : "", mode_text(call.modes[i]),
                        print(program, call.outputs[i]));
  for (const auto& [key, value] : call.attributes)
    line += fmt::format(" {}={}", key, spec::to_string(value));
  if (call.workspace_bytes > 0)
    line += fmt::format(" workspace {}+{} {} bytes",
                        call.workspace_arena == Arena::kGradient ? "gradient" : "frame",
                        call.workspace_offset, call.workspace_bytes);
  if (call.only_first_micro_batch) line += " first micro-batch only";
  return line + "\n";
}

std::string print(const Program& program, const SwapPoint& point) {
  constexpr std::string_view kSteps[] = {"write", "read", "await write of", "await read of"};
  const SwapWindow& window = program.windows[static_cast<std::size_t>(point.window)];
  const std::string_view name =
      window.state >= 0 ? text(program.states[static_cast<std::size_t>(window.state)].name)
                        : program.regions[static_cast<std::size_t>(window.region)].name;
  return fmt::format("    {} {} frame+{}\n", kSteps[static_cast<std::size_t>(point.step)], name,
                     window.offset);
}

std::string print(const Program& program, Action action, const std::vector<Call>& calls) {
  std::string result;
  const auto points = program.swap_points.find(action);
  std::size_t next = 0;
  for (std::size_t i = 0; i <= calls.size(); ++i) {
    for (; points != program.swap_points.end() && next < points->second.size() &&
           points->second[next].call <= static_cast<std::int32_t>(i);
         ++next)
      result += print(program, points->second[next]);
    if (i < calls.size()) result += print(program, calls[i]);
  }
  return result;
}

}  // namespace

std::string print(const Program& program) {
  std::string result =
      fmt::format("program {{\n  bytes frame {} gradient {} input {}\n", program.frame_bytes,
                  program.gradient_bytes, program.input_bytes);
  for (const StateSlot& state : program.states)
    result += fmt::format("  state {} {}{}\n", text(state.name), to_string(state.type),
                          state.is_on_disk ? " on disk" : "");
  for (const SwapRegion& region : program.regions)
    result += fmt::format("  offloaded {} {} bytes\n", region.name, region.bytes);
  for (const NamedOperand& input : program.inputs)
    result += fmt::format("  input {} {}\n", input.name, print(program, input.operand));
  for (const NamedOperand& output : program.outputs)
    result += fmt::format("  output {} {}\n", output.name, print(program, output.operand));
  for (const auto& [action, calls] : program.calls) {
    result += fmt::format("  {} {{\n", spec::to_string(action));
    result += print(program, action, calls);
    result += "  }\n";
  }
  for (const NamedOperand& output : program.first.outputs)
    result += fmt::format("  output {} {} of the first micro-batch\n", output.name,
                          print(program, output.operand));
  for (const auto& [action, calls] : program.first.calls) {
    result += fmt::format("  {} of the first micro-batch {{\n", spec::to_string(action));
    for (const Call& call : calls) result += print(program, call);
    result += "  }\n";
  }
  return result + "}\n";
}

}  // namespace anabatic::runtime
