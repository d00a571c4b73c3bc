// SPDX-License-Identifier: Apache-2.0
#include "train/nonfinite.h"

#include <cmath>
#include <string>

#include "base/error.h"

namespace anabatic::train {
namespace {

bool is_finite(const TensorView& view) {
  const std::int64_t count = view.type->num_elements();
  switch (view.type->dtype) {
    case DType::kFloat32: {
      const float* values = view.as<float>();
      for (std::int64_t i = 0; i < count; ++i)
        if (!std::isfinite(values[i])) return false;
      return true;
    }
    case DType::kBFloat16: {
      const BFloat16* values = view.as<BFloat16>();
      for (std::int64_t i = 0; i < count; ++i)
        if (!std::isfinite(to_float(values[i]))) return false;
      return true;
    }
    default:
      return true;
  }
}

// Remembers the first call whose outputs are not finite.
struct FirstBadCall {
  std::string label;

  static void observe(void* context, const runtime::CallEvent& event) {
    auto& self = *static_cast<FirstBadCall*>(context);
    if (!self.label.empty()) return;
    for (const TensorView& output : event.outputs) {
      if (is_finite(output)) continue;
      self.label = fmt::format("{} -> {}", event.call.label, to_string(*output.type));
      return;
    }
  }
};

}  // namespace

void require_finite_loss(BoundProgram& program, std::int64_t step, double loss) {
  if (std::isfinite(loss)) return;
  FirstBadCall first;
  program.executor->observe({FirstBadCall::observe, &first});
  program.executor->run(spec::Action::kForward);
  program.executor->observe({});
  throw Error(fmt::format(
      "[train] step {}: the loss is {}; first in {}; nothing was saved since the last checkpoint",
      step, loss, first.label.empty() ? "no call of a second forward" : first.label));
}

void require_finite_gradients(const BoundProgram& program, std::int64_t step, double grad_norm) {
  if (std::isfinite(grad_norm)) return;
  constexpr std::string_view kPrefix = "sum_squares.";
  std::string tensors;
  for (const auto& output : program.compiled.program.outputs) {
    if (!output.name.starts_with(kPrefix)) continue;
    const double sum = program.scalar(output.name);
    if (!std::isfinite(sum))
      tensors +=
          fmt::format("{}{}", tensors.empty() ? "" : ", ", output.name.substr(kPrefix.size()));
  }
  const bool was_skipped = program.executor->has_action(spec::Action::kUpdate);
  throw Error(fmt::format(
      "[train] step {}: the gradient's norm is {}; first in the gradients of {}; {} and nothing "
      "was saved since the last checkpoint",
      step, grad_norm, tensors.empty() ? "no tensor alone: their sum overflows" : tensors,
      was_skipped ? "the update was skipped" : "the backward had updated weights by then"));
}

}  // namespace anabatic::train
