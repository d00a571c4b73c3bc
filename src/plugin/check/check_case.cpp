// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/check_case.h"

#include <fmt/core.h>

#include <algorithm>

#include "plugin/check/checked_call.h"
#include "plugin/check/comparisons.h"
#include "plugin/check/differences.h"

namespace anabatic::plugin::check {
namespace {

constexpr std::uint64_t kSeeds = 2;  // of values for finite differences
// The first streams of outputs' gradients, and of outputs that move.
constexpr std::uint64_t kOfOutputs = 1 << 16, kOutputs = 1 << 17;

class CaseCheck {
 public:
  CaseCheck(const PluginOp& op, const Case& one, Reporter& reporter)
      : op_(op), one_(one), reporter_(reporter), caller_(op, reporter) {}

  void run() {
    const auto inputs = random_inputs(op_.inputs(), one_, 0);
    if (!inputs) reporter_.skip("there is no index below 0");
    const std::vector<TensorType> types = caller_.infer(*inputs);
    caller_.cost(*inputs, types);
    const Operands outputs = repeated(Function::kForward, *inputs, blank_outputs(types));
    Operands of_outputs, of_inputs;
    if (op_.has_gradient()) {
      of_outputs = gradients_of(types, 0);
      of_inputs = check_absence(*inputs, outputs, of_outputs);
    }
    const auto wide = reference_dtype(op_.inputs());
    if (!wide) return;
    if (*wide == one_.dtype) {
      if (op_.has_gradient())
        for (std::uint64_t seed = 0; seed < kSeeds; ++seed) check_gradients(seed, types);
    } else if (is_float(one_.dtype)) {
      check_precision(*wide, *inputs, outputs, of_outputs, of_inputs);
    }
  }

 private:
  Operands blank_outputs(const std::vector<TensorType>& types) const {
    Operands outputs;
    for (std::size_t i = 0; i < types.size(); ++i)
      outputs.push_back({.type = types[i], .name = op_.outputs()[i].name});
    return outputs;
  }

  Operands blank_gradients(const Operands& inputs) const {
    Operands gradients;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      gradients.push_back({.type = op_.gradient_type(i, inputs[i].type),
                           .is_given = op_.inputs()[i].has_gradient(),
                           .name = "gradient of " + inputs[i].name});
    return gradients;
  }

  Operands gradients_of(const std::vector<TensorType>& types, std::uint64_t seed) const {
    Operands gradients;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const std::string name = "gradient of " + op_.outputs()[i].name;
      const bool has_one = op_.outputs()[i].has_gradient() && is_float(types[i].dtype);
      gradients.push_back(has_one ? random_floats(types[i], name, seed, kOfOutputs + i)
                                  : Operand{.type = types[i], .is_given = false, .name = name});
    }
    return gradients;
  }

  Operands backward_inputs(const Operands& inputs, const Operands& outputs,
                           const Operands& of_outputs) const {
    Operands all = inputs;
    if (op_.reads_outputs()) all.insert(all.end(), outputs.begin(), outputs.end());
    all.insert(all.end(), of_outputs.begin(), of_outputs.end());
    return all;
  }

  Operands repeated(Function function, const Operands& inputs, const Operands& outputs) {
    return repeat(
        [&](const Setting& setting) { return caller_.run(function, inputs, outputs, setting); },
        reporter_);
  }

  // Backward with all gradients, then with some absent. Returns those of all.
  Operands check_absence(const Operands& inputs, const Operands& outputs,
                         const Operands& of_outputs) {
    const Operands blank = blank_gradients(inputs);
    const Operands all_inputs = backward_inputs(inputs, outputs, of_outputs);
    const Operands all = repeated(Function::kBackward, all_inputs, blank);
    check_absent_results(all_inputs, all);
    const auto given = [](const Operand& operand) { return operand.is_given; };
    if (std::count_if(of_outputs.begin(), of_outputs.end(), given) < 2) return all;
    for (std::size_t i = 0; i < of_outputs.size(); ++i) {
      if (!of_outputs[i].is_given) continue;
      Operands some = of_outputs, with_zeros = of_outputs;
      some[i].is_given = false;
      with_zeros[i] = zeros(of_outputs[i].type, of_outputs[i].name);
      const std::string note = fmt::format("without the {}", of_outputs[i].name);
      const Operands some_inputs = backward_inputs(inputs, outputs, some);
      const Operands got = caller_.run(Function::kBackward, some_inputs, blank, kSettings[1], note);
      const Operands want = caller_.run(
          Function::kBackward, backward_inputs(inputs, outputs, with_zeros), blank, kSettings[0]);
      reporter_.enter("backward", note, {});
      expect_near(got, want, want, unit_, "with zeros", reporter_);
      check_absent_results(some_inputs, got);
    }
    return all;
  }

  // Each gradient of an input absent, and those of one kind, which a plan asks for alone.
  void check_absent_results(const Operands& inputs, const Operands& all) {
    std::vector<std::vector<bool>> masks;
    const std::size_t count = all.size();
    for (std::size_t i = 0; i < count; ++i) {
      masks.emplace_back(count, true);
      masks.back()[i] = false;
    }
    for (const std::int32_t kind : {ANABATIC_ACTIVATION, ANABATIC_WEIGHT}) {
      masks.emplace_back(count, true);
      for (std::size_t i = 0; i < count; ++i) masks.back()[i] = op_.inputs()[i].kind == kind;
    }
    for (const std::vector<bool>& mask : masks) {
      Operands wanted = all;
      std::string absent;
      bool has_any = false;
      for (std::size_t i = 0; i < count; ++i) {
        if (!all[i].is_given) continue;
        wanted[i].bytes.clear();
        wanted[i].is_given = mask[i];
        has_any = has_any || mask[i];
        if (!mask[i]) absent += (absent.empty() ? "" : " and the ") + all[i].name;
      }
      if (absent.empty() || !has_any) continue;
      const std::string note = fmt::format("without the {}", absent);
      const Operands got = caller_.run(Function::kBackward, inputs, wanted, kSettings[1], note);
      expect_equal(got, all, "absent", "than with all gradients", reporter_);
    }
  }

  void check_gradients(std::uint64_t seed, const std::vector<TensorType>& types) {
    const Operands inputs = *random_inputs(op_.inputs(), one_, seed);
    const Operands blank = blank_outputs(types), of_outputs = gradients_of(types, seed);
    const Operands outputs = caller_.run(Function::kForward, inputs, blank, {});
    const Operands of_inputs =
        caller_.run(Function::kBackward, backward_inputs(inputs, outputs, of_outputs),
                    blank_gradients(inputs), {});
    check_differences(caller_, inputs, blank, of_outputs, of_inputs);
  }

  void check_precision(DType wide, const Operands& inputs, const Operands& outputs,
                       const Operands& of_outputs, const Operands& of_inputs) {
    Case wide_case = one_;
    wide_case.dtype = wide;
    const std::vector<TensorType> wide_types = input_types(op_.inputs(), wide_case);
    const auto with_inputs = [&](const Operands& operands, double share) {
      Operands result;
      for (std::size_t i = 0; i < operands.size(); ++i)
        result.push_back(moved(converted(operands[i], wide_types[i].dtype), share, i));
      return result;
    };
    const Operands wide_inputs = with_inputs(inputs, 0), moved_inputs = with_inputs(inputs, unit_);
    const std::vector<TensorType> types = caller_.infer(wide_inputs);
    const auto forward = [&](const Operands& from) {
      return caller_.run(Function::kForward, from, blank_outputs(types), {});
    };
    const Operands want = forward(wide_inputs), want_moved = forward(moved_inputs);
    const std::string with = fmt::format("in {}", anabatic::to_string(wide));
    expect_near(outputs, want, want_moved, unit_, with, reporter_);
    if (!op_.has_gradient()) return;
    const auto backward = [&](const Operands& from, const Operands& made, double share) {
      Operands read, gradients;
      for (std::size_t i = 0; i < of_outputs.size(); ++i) {
        read.push_back(moved(made[i], share, kOutputs + i));
        gradients.push_back(moved(converted(of_outputs[i], types[i].dtype), share, kOfOutputs + i));
      }
      return caller_.run(Function::kBackward, backward_inputs(from, read, gradients),
                         blank_gradients(from), {});
    };
    const Operands want_gradients = backward(wide_inputs, want, 0);
    expect_near(of_inputs, want_gradients, backward(moved_inputs, want_moved, unit_), unit_, with,
                reporter_);
  }

  const PluginOp& op_;
  const Case& one_;
  Reporter& reporter_;
  Caller caller_;
  double unit_ = roundoff(one_.dtype);
};

}  // namespace

void check_case(const PluginOp& op, const Case& one, Reporter& reporter) {
  CaseCheck(op, one, reporter).run();
  reporter.pass();
}

}  // namespace anabatic::plugin::check
