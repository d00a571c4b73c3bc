// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/check_kernel.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/table.h"
#include "plugin/check/comparisons.h"
#include "plugin/plugin_attributes.h"

namespace anabatic::plugin::check {
namespace {

class KernelCheck {
 public:
  KernelCheck(const PluginKernel& kernel, const KernelForm& form, const Case& one,
              Reporter& reporter)
      : kernel_(kernel),
        schema_(*ops::find_op(kernel.op())),
        attributes_(attributes_of(form, one)),
        json_(to_json(attributes_)),
        form_(form),
        one_(one),
        reporter_(reporter) {}

  void run() {
    const auto inputs = inputs_of(form_, one_, 0);
    if (!inputs) reporter_.skip("there is no index below 0");
    for (const Operand& input : *inputs) input_types_.push_back(input.type);
    infer();
    const std::int64_t workspace = ask();
    const Operands blank = blank_outputs();
    const auto call = [&](const Setting& setting, std::span<const int> in_place) {
      return run_guarded({.place = kernel_.place("run"),
                          .attributes = json_.c_str(),
                          .function = kernel_.raw().run,
                          .workspace_bytes = workspace,
                          .in_place = in_place},
                         *inputs, blank, setting, in_place.empty() ? "" : "in place of an input",
                         teams_, reporter_);
    };
    const Operands outputs =
        repeat([&](const Setting& setting) { return call(setting, {}); }, reporter_);
    check_in_place(outputs, call);
    check_against_ref(*inputs, outputs);
  }

 private:
  void infer() {
    try {
      output_types_ = schema_.infer(input_types_, attributes_);
    } catch (const InvalidArgument& error) {
      reporter_.skip(fmt::format("the op has no such call: {}", error.what()));
    }
  }

  spec::Problem problem() const {
    return {.op = op_,
            .attributes = &attributes_,
            .inputs = input_types_,
            .outputs = output_types_,
            .device = &device_,
            .may_add = false};
  }

  // Whether the kernel takes the call, and how much workspace.
  std::int64_t ask() {
    reporter_.enter("supports", "", {});
    if (const kernels::Support support = kernel_.row().supports(problem()); !support)
      reporter_.skip(fmt::format("it does not support such a call: {}", support.reason));
    reporter_.enter("workspace_bytes", "", {});
    const std::int64_t bytes = kernel_.row().workspace_bytes(problem());
    if (bytes > kMostBytes) reporter_.skip("the workspace is too large for a check");
    return bytes;
  }

  Operands blank_outputs() const {
    Operands outputs;
    for (const TensorType& type : output_types_)
      outputs.push_back({.type = type, .name = "result"});
    return outputs;
  }

  // A plan may give an output the memory of an input.
  template <class Call>
  void check_in_place(const Operands& outputs, const Call& call) {
    if (schema_.may_alias == nullptr) return;
    const ir::Aliases aliases = schema_.may_alias(attributes_);
    std::vector<int> in_place(outputs.size(), -1);
    for (std::size_t i = 0; i < std::min(aliases.size(), in_place.size()); ++i) {
      const auto input = static_cast<std::size_t>(aliases[i]);
      if (aliases[i] >= 0 && input < input_types_.size() && input_types_[input] == output_types_[i])
        in_place[i] = aliases[i];
    }
    if (std::all_of(in_place.begin(), in_place.end(), [](int input) { return input < 0; })) return;
    for (const Setting& setting : {kSettings[0], kSettings[3]})
      expect_equal(call(setting, in_place), outputs, "in place",
                   "where an output has the memory of an input", reporter_);
  }

  Operands of_ref(const Operands& inputs) const {
    for (const kernels::Kernel& row : kernels::ref_table()) {
      if (row.op != kernel_.op() || !row.supports(problem())) continue;
      std::vector<TensorView> in, out;
      for (const Operand& input : inputs)
        in.push_back({.data = const_cast<std::byte*>(input.bytes.data()), .type = &input.type});
      Operands outputs = blank_outputs();
      for (Operand& output : outputs) {
        output = zeros(output.type, output.name);
        out.push_back({.data = output.bytes.data(), .type = &output.type});
      }
      const std::vector<std::byte> prepared =
          row.prepare ? row.prepare(problem()) : std::vector<std::byte>();
      ANABATIC_CHECK(prepared.empty(), "[check-op] {} prepares", row.name);
      const std::int64_t bytes = row.workspace_bytes ? row.workspace_bytes(problem()) : 0;
      GuardedMemory workspace(bytes, Side::kBegin, kPoison);
      const std::array<bool, kMostOutputs> assigns{};
      row.run({.inputs = in,
               .outputs = out,
               .attributes = &attributes_,
               .workspace = workspace.data(),
               .prepared = nullptr,
               .accumulate = std::span(assigns).first(outputs.size()),
               .launch = {}});
      return outputs;
    }
    throw InternalError(fmt::format("[check-op] ref has no {}", kernel_.op()));
  }

  void check_against_ref(const Operands& inputs, const Operands& outputs) {
    reporter_.enter("run", "", {});
    const double unit = std::max(roundoff(inputs), roundoff(outputs));
    Operands moved_inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      moved_inputs.push_back(moved(inputs[i], unit, i));
    const Operands want = of_ref(inputs);
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!is_float(want[i].type.dtype))
        expect_equal({outputs[i]}, {want[i]}, "ref", "than ref", reporter_);
    expect_near(outputs, want, of_ref(moved_inputs), unit, "by ref", reporter_);
  }

  const PluginKernel& kernel_;
  const ir::OpSchema& schema_;
  const spec::Attributes attributes_;
  const std::string json_;
  const KernelForm& form_;
  const Case& one_;
  Reporter& reporter_;
  const Name op_ = intern(kernel_.op());
  const spec::DeviceSpec device_{};
  std::vector<TensorType> input_types_, output_types_;
  Teams teams_;
};

}  // namespace

void check_kernel_case(const PluginKernel& kernel, const KernelForm& form, const Case& one,
                       Reporter& reporter) {
  KernelCheck(kernel, form, one, reporter).run();
  reporter.pass();
}

}  // namespace anabatic::plugin::check
