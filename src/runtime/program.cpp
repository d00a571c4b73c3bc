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
    line +=
        fmt::format(" workspace frame+{} {} bytes", call.workspace_offset, call.workspace_bytes);
  if (call.only_first_micro_batch) line += " first micro-batch only";
  return line + "\n";
}

}  // namespace

std::string print(const Program& program) {
  std::string result =
      fmt::format("program {{\n  bytes frame {} gradient {} input {}\n", program.frame_bytes,
                  program.gradient_bytes, program.input_bytes);
  for (const StateSlot& state : program.states)
    result += fmt::format("  state {} {}\n", text(state.name), to_string(state.type));
  for (const NamedOperand& input : program.inputs)
    result += fmt::format("  input {} {}\n", input.name, print(program, input.operand));
  for (const NamedOperand& output : program.outputs)
    result += fmt::format("  output {} {}\n", output.name, print(program, output.operand));
  for (const auto& [action, calls] : program.calls) {
    result += fmt::format("  {} {{\n", spec::to_string(action));
    for (const Call& call : calls) result += print(program, call);
    result += "  }\n";
  }
  return result + "}\n";
}

}  // namespace anabatic::runtime
