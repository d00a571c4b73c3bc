// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/differences.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/philox.h"

namespace anabatic::plugin::check {
namespace {

// A step h leaves an error of h^2 from the third derivative, and one of the outputs' roundings over
// h. The largest of each is near the best for the dtype.
struct Steps {
  std::array<double, 3> sizes;
  double share;  // of the terms' magnitudes, that both sides may differ
};
constexpr Steps kInDouble{{0x1p-16, 0x1p-20, 0x1p-24}, 0x1p-20};
constexpr Steps kInFloat{{0x1p-7, 0x1p-9, 0x1p-11}, 0x1p-7};
constexpr double kRoundings = 16;  // of an output

struct Sum {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

Sum objective(const Operands& outputs, const Operands& of_outputs) {
  Sum sum;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!of_outputs[i].is_given) continue;
    const std::int64_t count = outputs[i].type.num_elements();
    for (std::int64_t k = 0; k < count; ++k)
      sum.add(value_at(outputs[i], k) * value_at(of_outputs[i], k));
  }
  return sum;
}

struct Comparison {
  double difference = 0, backward = 0, error = 0, allowed = 0;
  bool is_equal() const { return error <= allowed; }
  bool is_defined() const { return std::isfinite(difference); }
};

Comparison compare(Caller& caller, const Operands& inputs, const Operands& outputs,
                   const Operands& of_outputs, const Operand& gradient, std::size_t of, double step,
                   const Steps& steps) {
  const auto at = [&](double distance) {
    Operands there = inputs;
    const std::int64_t count = inputs[of].type.num_elements();
    for (std::int64_t k = 0; k < count; ++k) {
      const double direction = 2 * random_uniform(2, of, static_cast<std::uint64_t>(k)) - 1;
      set_value(there[of], k, value_at(inputs[of], k) + distance * direction);
    }
    return there;
  };
  const Operands above = at(step), below = at(-step);
  const auto value = [&](const Operands& there) {
    return objective(caller.run(Function::kForward, there, outputs, {}), of_outputs);
  };
  const Sum high = value(above), low = value(below);
  Sum linear;
  const std::int64_t count = gradient.type.num_elements();
  for (std::int64_t k = 0; k < count; ++k)
    linear.add(value_at(gradient, k) * (value_at(above[of], k) - value_at(below[of], k)));
  const double unit = std::max(roundoff(outputs), roundoff(inputs));
  const double allowed =
      steps.share * linear.magnitude + kRoundings * unit * (high.magnitude + low.magnitude);
  const double difference = high.value - low.value;
  return {.difference = difference / (2 * step),
          .backward = linear.value / (2 * step),
          .error = std::abs(difference - linear.value),
          .allowed = allowed};
}

}  // namespace

void check_differences(Caller& caller, const Operands& inputs, const Operands& outputs,
                       const Operands& of_outputs, const Operands& of_inputs) {
  const double unit = std::max(roundoff(outputs), roundoff(inputs));
  if (unit > roundoff(DType::kFloat32)) return;
  const Steps& steps = unit > roundoff(DType::kFloat64) ? kInFloat : kInDouble;
  for (std::size_t i = 0; i < of_inputs.size(); ++i) {
    if (!of_inputs[i].is_given || of_inputs[i].type.num_elements() == 0) continue;
    Comparison first;
    bool is_equal = false;
    for (const double step : steps.sizes) {
      const Comparison now =
          compare(caller, inputs, outputs, of_outputs, of_inputs[i], i, step, steps);
      if (step == steps.sizes[0]) first = now;
      if (is_equal = now.is_equal() || !now.is_defined(); is_equal) break;
    }
    if (is_equal) continue;
    caller.reporter().enter("backward", "", {});
    caller.reporter().fail(
        "gradient of " + inputs[i].name,
        fmt::format("gives a gradient of {} with the derivative {:.6g} in a random direction, "
                    "finite differences {:.6g}: relative error {:.2g}",
                    inputs[i].name, first.backward, first.difference,
                    std::abs(first.backward - first.difference) /
                        std::max(std::abs(first.backward), std::abs(first.difference))));
  }
}

}  // namespace anabatic::plugin::check
