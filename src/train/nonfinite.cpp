// SPDX-License-Identifier: Apache-2.0
#include "train/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "base/error.h"
#include "passes/ranks/shard_optimizer.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

bool is_finite(DType dtype, std::span<const std::byte> bytes) {
  const auto all = [&](auto* values, auto&& to_number) {
    const std::size_t count = bytes.size() / sizeof(*values);
    for (std::size_t i = 0; i < count; ++i)
      if (!std::isfinite(to_number(values[i]))) return false;
    return true;
  };
  if (dtype == DType::kFloat32)
    return all(reinterpret_cast<const float*>(bytes.data()), [](float value) { return value; });
  if (dtype == DType::kBFloat16)
    return all(reinterpret_cast<const BFloat16*>(bytes.data()),
               [](BFloat16 value) { return to_float(value); });
  return true;
}

// A quantised tensor is as finite as its scales.
bool is_finite(const TensorView& view) {
  const bool is_quantized = view.type->is_quantized();
  const TensorType type = is_quantized ? scales_type(*view.type) : elements_type(*view.type);
  const std::byte* data = is_quantized ? view.scales<const std::byte>() : view.data;
  return is_finite(type.dtype,
                   {data, static_cast<std::size_t>(type.num_elements() * size_bytes(type.dtype))});
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

// Whether ranks exchange in a forward: then none can run one alone.
bool exchanges_in_forward(const runtime::Program& program) {
  const auto forward = program.variants.find(spec::Action::kForward);
  return forward != program.variants.end() &&
         std::ranges::any_of(forward->second, [](const runtime::Variant& variant) {
           return !variant.exchange_points.empty();
         });
}

}  // namespace

void require_finite_loss(BoundProgram& program, std::int64_t step, double loss) {
  if (std::isfinite(loss)) return;
  if (exchanges_in_forward(program.compiled.program))
    throw Error(fmt::format("[train] step {}: the loss is {}", step, loss));
  const std::string first =
      first_bad_call(program, [&] { program.run_alone(spec::Action::kForward); });
  throw Error(fmt::format("[train] step {}: the loss is {}; first in {}", step, loss,
                          first.empty() ? "no call of a second forward" : first));
}

std::string first_bad_call(BoundProgram& program, const std::function<void()>& run) {
  FirstBadCall first;
  program.executor->observe({FirstBadCall::observe, &first});
  run();
  program.executor->observe({});
  return first.label;
}

void require_finite_gradients(const BoundProgram& program, std::int64_t step, double grad_norm) {
  if (std::isfinite(grad_norm)) return;
  std::string tensors;
  const auto add = [&](std::string_view name, double sum) {
    if (!std::isfinite(sum)) tensors += fmt::format("{}{}", tensors.empty() ? "" : ", ", name);
  };
  constexpr std::string_view kPrefix = "sum_squares.";
  for (const auto& output : program.compiled.program.layouts.front().outputs)
    if (output.name.starts_with(kPrefix))
      add(output.name.substr(kPrefix.size()), program.scalar(output.name));
  for (const std::string_view output : {passes::kSumsOfSquares, passes::kSumsOfSquaresOfExperts}) {
    if (!program.executor->has_output(output)) continue;
    const TensorView sums = program.executor->output(output);
    const double* row = sums.as<const double>();
    for (const Name name : passes::names_of_sums(program.compiled.graph, output)) {
      add(text(name), std::accumulate(row, row + sums.type->dim(1), 0.0));
      row += sums.type->dim(1);
    }
  }
  const bool was_skipped = program.executor->has_action(spec::Action::kUpdate);
  throw Error(fmt::format(
      "[train] step {}: the gradient's norm is {}; first in the gradients of {}; {}", step,
      grad_norm, tensors.empty() ? "no tensor alone: their sum overflows" : tensors,
      was_skipped ? "the update was skipped" : "the backward had updated weights by then"));
}

bool states_are_finite(ModelSession& session) {
  bool are_finite = true;
  for (const SavedState& state : session.saved_states())
    for_state_bytes(session.store(), state, {}, [&](std::span<const std::byte> block) {
      are_finite = are_finite && is_finite(state.type.dtype, block);
    });
  return are_finite;
}

}  // namespace anabatic::train
