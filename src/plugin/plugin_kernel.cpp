// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_kernel.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "ops/table.h"
#include "plugin/plugin_attributes.h"
#include "spec/activation.h"

namespace anabatic::plugin {
namespace {

void add_operands(PluginCall& call, const spec::Problem& problem) {
  for (const TensorType& type : problem.inputs) call.add_input(type, nullptr);
  for (const TensorType& type : problem.outputs) call.add_output(type, nullptr);
}

// What to write instead of an op that the engine does not have; empty: nobody knows.
std::string hint_for(const std::string& op) {
  for (const spec::ActivationRow& row : spec::activation_rows())
    if (row.name == op)
      return fmt::format(": it is the op activation with the attribute activation = \"{}\"", op);
  std::vector<std::string> names;
  for (const ir::OpSchema* known : ops::all_ops()) names.emplace_back(known->name);
  const auto nearest = nearest_word(op, names);
  return nearest ? fmt::format("; did you mean '{}'?", *nearest) : "";
}

}  // namespace

PluginKernel::PluginKernel(const anabatic_kernel* kernel, std::size_t bytes, std::string file)
    : file_(std::move(file)) {
  std::memcpy(&kernel_, kernel, std::min(bytes, sizeof(kernel_)));
  ANABATIC_REQUIRE(kernel_.name != nullptr && *kernel_.name != 0 && kernel_.op != nullptr,
                   "[plugin] {}: expected a name and an op for each kernel", file_);
  op_ = kernel_.op;
  name_ = fmt::format("plugin:{}", kernel_.name);
  ANABATIC_REQUIRE(ops::find_op(op_) != nullptr,
                   "[plugin] {}: kernel {}: the engine has no op '{}'{}", file_, kernel_.name, op_,
                   hint_for(op_));
  ANABATIC_REQUIRE(kernel_.supports != nullptr && kernel_.run != nullptr,
                   "[plugin] {}: kernel {}: expected functions `supports` and `run`", file_,
                   kernel_.name);
  using Row = kernels::Kernel;
  row_.name = name_;
  row_.op = op_;
  row_.supports = decltype(Row::supports)::bind<&PluginKernel::supports>(*this);
  row_.workspace_bytes =
      decltype(Row::workspace_bytes)::bind<&PluginKernel::workspace_bytes>(*this);
  row_.prepare = decltype(Row::prepare)::bind<&PluginKernel::prepare>(*this);
  row_.run = decltype(Row::run)::bind<&PluginKernel::run>(*this);
}

kernels::Support PluginKernel::supports(const spec::Problem& problem) const {
  if (problem.inputs.size() > kMostInputs || problem.outputs.size() > kMostOutputs)
    return kernels::no(
        fmt::format("plugins take at most {} inputs and {} outputs", kMostInputs, kMostOutputs));
  for (const auto types : {problem.inputs, problem.outputs})
    for (const TensorType& type : types)
      if (type.layout != kRowMajor || type.is_quantized() || !to_plugin_dtype(type.dtype) ||
          type.ndim() > ANABATIC_MAX_NDIM)
        return kernels::no(
            fmt::format("plugins take row-major f32, bf16, f64 and i32, got {}", to_string(type)));
  if (problem.may_add && ops::find_op(op_)->can_accumulate)
    return kernels::no("the call may add to its outputs, which kernels of plugins do not");
  const std::string json = to_json(*problem.attributes);
  PluginCall call(place("supports"), json.c_str(), nullptr);
  add_operands(call, problem);
  if (call.run(kernel_.supports) == 0 && call.failure().empty()) return kernels::yes();
  return kernels::no(call.failure().empty() ? "it gave no reason" : std::string(call.failure()));
}

std::int64_t PluginKernel::workspace_bytes(const spec::Problem& problem) const {
  if (kernel_.workspace_bytes == nullptr) return 0;
  const std::string json = to_json(*problem.attributes);
  PluginCall call(place("workspace_bytes"), json.c_str(), nullptr);
  add_operands(call, problem);
  const std::int64_t bytes = call.run(kernel_.workspace_bytes);
  if (!call.failure().empty()) call.check(1);
  ANABATIC_REQUIRE(bytes >= 0, "[plugin] {}: workspace_bytes of kernel {} gave {}", file_,
                   kernel_.name, bytes);
  return bytes;
}

// Bytes of workspace, then the attributes as text.
std::vector<std::byte> PluginKernel::prepare(const spec::Problem& problem) const {
  const std::int64_t bytes = workspace_bytes(problem);
  const std::string json = to_json(*problem.attributes);
  std::vector<std::byte> result(sizeof(bytes) + json.size() + 1);
  std::memcpy(result.data(), &bytes, sizeof(bytes));
  std::memcpy(result.data() + sizeof(bytes), json.c_str(), json.size() + 1);
  return result;
}

void PluginKernel::run(const kernels::Arguments& arguments) const {
  const auto* prepared = static_cast<const std::byte*>(arguments.prepared);
  std::int64_t bytes = 0;
  std::memcpy(&bytes, prepared, sizeof(bytes));
  PluginCall call(place("run", arguments.label),
                  reinterpret_cast<const char*>(prepared + sizeof(bytes)), arguments.launch.team);
  for (const TensorView& input : arguments.inputs) call.add_input(*input.type, input.data);
  for (const TensorView& output : arguments.outputs) call.add_output(*output.type, output.data);
  call.set_workspace(arguments.workspace, bytes);
  call.require(kernel_.run);
}

}  // namespace anabatic::plugin
