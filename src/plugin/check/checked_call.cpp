// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/checked_call.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "plugin/plugin_attributes.h"

namespace anabatic::plugin::check {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 64;
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // of an output

std::vector<TensorType> types_of(const Operands& operands) {
  std::vector<TensorType> types;
  for (const Operand& operand : operands) types.push_back(operand.type);
  return types;
}

}  // namespace

std::string_view to_string(Function function) {
  return function == Function::kForward ? "forward" : "backward";
}

Caller::Caller(const PluginOp& op, Reporter& reporter)
    : op_(op), reporter_(reporter), attributes_(to_json(op.defaults())) {}

// Sleeping threads without cores of their own: they disturb no one, and differ more in time.
device::ThreadTeam* Caller::team(int threads) {
  if (threads == 1) return nullptr;
  auto& team = teams_[threads];
  if (!team) team = std::make_unique<device::ThreadTeam>(threads, device::CpuLimits{.cores = {0}});
  return team.get();
}

std::vector<TensorType> Caller::infer(const Operands& inputs) {
  reporter_.enter("infer", "", {});
  const std::vector<TensorType> types = types_of(inputs);
  if (op_.raw().infer != nullptr) {
    PluginCall call(op_.place("infer"), attributes_.c_str(), nullptr);
    for (const TensorType& type : types) call.add_input(type, nullptr);
    for (std::size_t i = 0; i < op_.outputs().size(); ++i) call.add_untyped_output();
    if (call.run(op_.raw().infer) != 0 || !call.failure().empty())
      reporter_.skip(fmt::format("infer refuses these types or sizes: {}",
                                 call.failure().empty() ? "it gives no reason" : call.failure()));
  }
  std::vector<TensorType> outputs = op_.infer(types, {});
  for (const TensorType& output : outputs)
    if (output.num_bytes() > kMostBytes) reporter_.skip("an output is too large for a check");
  return outputs;
}

void Caller::cost(const Operands& inputs, const std::vector<TensorType>& outputs) {
  reporter_.enter("cost", "", {});
  (void)op_.cost(types_of(inputs), outputs, {});
}

// As a plan asks: before there are data.
std::int64_t Caller::workspace_bytes(Function function, const Operands& inputs,
                                     const Operands& outputs) {
  reporter_.enter("workspace_bytes", "", {});
  PluginCall call(op_.place("workspace_bytes"), attributes_.c_str(), nullptr);
  for (const Operand& input : inputs) call.add_input(input.type, nullptr);
  for (const Operand& output : outputs) call.add_output(output.type, nullptr);
  const std::int64_t bytes = op_.workspace_bytes(call, function == Function::kBackward);
  if (bytes > kMostBytes) reporter_.skip("the workspace is too large for a check");
  return bytes;
}

Operands Caller::run(Function function, const Operands& inputs, Operands outputs,
                     const Setting& setting, std::string_view note) {
  const std::int64_t workspace_size = workspace_bytes(function, inputs, outputs);
  std::deque<GuardedMemory> memory;
  std::vector<Watched> watched;
  const auto guard = [&](std::int64_t bytes, std::string name, std::int64_t alignment) {
    GuardedMemory& made = memory.emplace_back(bytes, setting.side, setting.poison, alignment);
    watched.push_back({&made, std::move(name)});
    return made.data();
  };
  PluginCall call(op_.place(to_string(function)), attributes_.c_str(), team(setting.threads));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::byte* data = nullptr;
    if (inputs[i].is_given) {
      data = guard(inputs[i].type.num_bytes(), fmt::format("input {} ({})", i, inputs[i].name), 1);
      std::copy(inputs[i].bytes.begin(), inputs[i].bytes.end(), data);
      memory.back().make_read_only();
    }
    call.add_input(inputs[i].type, data);
  }
  std::vector<const std::byte*> places;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::byte* data = nullptr;
    if (outputs[i].is_given)
      data =
          guard(outputs[i].type.num_bytes(), fmt::format("output {} ({})", i, outputs[i].name), 1);
    call.add_output(outputs[i].type, data);
    places.push_back(data);
  }
  if (workspace_size > 0)
    call.set_workspace(guard(workspace_size, "the workspace", kWorkspaceAlignment), workspace_size);
  reporter_.enter(to_string(function), note, watched);
  const std::int32_t result =
      call.run(function == Function::kForward ? op_.raw().forward : op_.raw().backward);
  reporter_.enter(to_string(function), note, {});
  if (result != 0 || !call.failure().empty())
    reporter_.fail("error", call.failure().empty()
                                ? fmt::format("failed: it returned {} and gave no reason", result)
                                : fmt::format("failed: {}", call.failure()));
  for (const Watched& one : watched)
    if (const auto offset = one.memory->changed_around(); offset)
      reporter_.fail("bounds", *offset < 0 ? fmt::format("writes {} bytes before the begin of {}",
                                                         -*offset, one.name)
                                           : fmt::format("writes to byte {} of {}, which has {}",
                                                         *offset, one.name, one.memory->bytes()));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].is_given)
      outputs[i].bytes.assign(places[i], places[i] + outputs[i].type.num_bytes());
  return outputs;
}

}  // namespace anabatic::plugin::check
