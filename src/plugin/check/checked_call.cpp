// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/checked_call.h"

#include <utility>

#include "base/error.h"
#include "plugin/plugin_attributes.h"

namespace anabatic::plugin::check {
namespace {

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
  const GuardedCall what{
      .place = op_.place(to_string(function)),
      .attributes = attributes_.c_str(),
      .function = function == Function::kForward ? op_.raw().forward : op_.raw().backward,
      .workspace_bytes = workspace_bytes(function, inputs, outputs)};
  return run_guarded(what, inputs, std::move(outputs), setting, note, teams_, reporter_);
}

}  // namespace anabatic::plugin::check
