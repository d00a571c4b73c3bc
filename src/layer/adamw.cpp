// SPDX-License-Identifier: Apache-2.0
#include "anabatic/adamw.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "device/thread_team.h"
#include "device/topology.h"
#include "kernels/kernel.h"
#include "spec/optimizer_step.h"

namespace anabatic {
namespace {

TensorView view_of(const TensorType& type, const void* data) {
  return {.data = static_cast<std::byte*>(const_cast<void*>(data)), .type = &type};
}

void require_fraction(const char* name, double value) {
  ANABATIC_REQUIRE(value >= 0 && value < 1, "[adamw] {}: expected a number in [0, 1), got {}", name,
                   value);
}

void require_not_below_zero(const char* name, double value) {
  ANABATIC_REQUIRE(std::isfinite(value) && value >= 0,
                   "[adamw] {}: expected a number of at least 0, got {}", name, value);
}

}  // namespace

struct AdamW::Impl {
  Impl(int threads, LayerHostRun host)
      : device(device::describe_cpu(threads)),
        team(host != nullptr ? std::make_unique<device::ThreadTeam>(threads, host)
                             : std::make_unique<device::ThreadTeam>(threads)) {}

  // Runs the first row for the op that supports it.
  void run(std::string_view op, std::span<const TensorView> inputs,
           std::span<const TensorView> outputs, const spec::Attributes& attributes) {
    std::vector<TensorType> in, out;
    for (const TensorView& view : inputs) in.push_back(*view.type);
    for (const TensorView& view : outputs) out.push_back(*view.type);
    const spec::Problem problem{.op = intern(op),
                                .attributes = &attributes,
                                .inputs = in,
                                .outputs = out,
                                .device = &device,
                                .may_add = false};
    for (const kernels::Kernel* kernel : kernels::candidates(op)) {
      if (!kernel->supports(problem)) continue;
      const std::int64_t bytes =
          kernel->workspace_bytes != nullptr ? kernel->workspace_bytes(problem) : 0;
      if (bytes > std::ssize(workspace)) workspace.resize(static_cast<std::size_t>(bytes + 63));
      const std::vector<std::byte> prepared =
          kernel->prepare != nullptr ? kernel->prepare(problem) : std::vector<std::byte>();
      ANABATIC_CHECK(prepared.empty(), "[adamw] {} prepares", kernel->name);
      const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
      const std::array<bool, 4> assigns{};
      kernel->run({.inputs = inputs,
                   .outputs = outputs,
                   .attributes = &attributes,
                   .workspace = reinterpret_cast<std::byte*>((address + 63) / 64 * 64),
                   .prepared = nullptr,
                   .accumulate = std::span(assigns).first(outputs.size()),
                   .launch = {.team = team.get()}});
      return;
    }
    throw InternalError(fmt::format("[adamw] no kernel for {}", op));
  }

  std::mutex mutex;
  spec::DeviceSpec device;
  std::unique_ptr<device::ThreadTeam> team;
  std::vector<std::byte> workspace;
};

AdamW::AdamW(int threads, LayerHostRun host) : impl_(std::make_unique<Impl>(threads, host)) {}
AdamW::~AdamW() = default;

double AdamW::sum_squares(std::span<const AdamWParameter> parameters) {
  const std::lock_guard lock(impl_->mutex);
  double total = 0;
  for (const AdamWParameter& parameter : parameters) {
    const TensorType type{.dtype = DType::kFloat32, .shape = {parameter.rows, parameter.columns}};
    const TensorType scalar{.dtype = DType::kFloat64, .shape = {}};
    double sum = 0;
    impl_->run("sum_squares", std::array{view_of(type, parameter.gradient)},
               std::array{view_of(scalar, &sum)}, {});
    total += sum;
  }
  return total;
}

void AdamW::update(std::span<const AdamWParameter> parameters, const AdamWNumbers& numbers,
                   double learning_rate, std::int64_t step, double clip_factor) {
  require_fraction("beta1", numbers.beta1);
  require_fraction("beta2", numbers.beta2);
  require_not_below_zero("epsilon", numbers.epsilon);
  require_not_below_zero("weight_decay", numbers.weight_decay);
  require_not_below_zero("learning_rate", learning_rate);
  ANABATIC_REQUIRE(step >= 1 && step <= std::numeric_limits<std::int32_t>::max(),
                   "[adamw] expected a step of at least 1, got {}", step);
  const bool is_bf16 = numbers.moments == LayerDtype::kBFloat16;
  ANABATIC_REQUIRE(is_bf16 || numbers.moments == LayerDtype::kFloat32,
                   "[adamw] expected moments in f32 or bf16");
  const std::lock_guard lock(impl_->mutex);
  spec::Attributes attributes = spec::to_attributes(spec::OptimizerStep{});
  attributes["beta1"] = numbers.beta1;
  attributes["beta2"] = numbers.beta2;
  attributes["epsilon"] = numbers.epsilon;
  attributes["weight_decay"] = numbers.weight_decay;
  const TensorType number{.dtype = DType::kFloat32, .shape = {}};
  const TensorType count{.dtype = DType::kInt32, .shape = {}};
  const auto clip = static_cast<float>(clip_factor), rate = static_cast<float>(learning_rate);
  const auto at = static_cast<std::int32_t>(step);
  for (const AdamWParameter& parameter : parameters) {
    const TensorType type{.dtype = DType::kFloat32, .shape = {parameter.rows, parameter.columns}};
    const TensorType moment{.dtype = is_bf16 ? DType::kBFloat16 : DType::kFloat32,
                            .shape = type.shape};
    if (is_bf16) attributes["stream"] = parameter.stream;
    const TensorView value = view_of(type, parameter.value),
                     first = view_of(moment, parameter.first_moment),
                     second = view_of(moment, parameter.second_moment);
    impl_->run("optimizer_step",
               std::array{value, view_of(type, parameter.gradient), first, second,
                          view_of(number, &clip), view_of(number, &rate), view_of(count, &at)},
               std::array{value, first, second}, attributes);
  }
}

}  // namespace anabatic
