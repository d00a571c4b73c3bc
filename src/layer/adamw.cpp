// SPDX-License-Identifier: Apache-2.0
#include "anabatic/adamw.h"

#include <fmt/core.h>

#include <algorithm>
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
#include "tensor/dynamic_map.h"

namespace anabatic {
namespace {

TensorView view_of(const TensorType& type, const void* data) {
  return {.data = static_cast<std::byte*>(const_cast<void*>(data)), .type = &type};
}

TensorType moment_type(AdamWMoments moments, AdamWMoment which, std::int64_t rows,
                       std::int64_t columns) {
  const TensorType wide{.dtype = DType::kFloat32, .shape = {rows, columns}};
  switch (moments) {
    case AdamWMoments::kFloat32:
      break;
    case AdamWMoments::kBFloat16:
      return {.dtype = DType::kBFloat16, .shape = wide.shape};
    case AdamWMoments::kInt8:
      return quantized(wide,
                       moment_format(which == AdamWMoment::kFirst ? ElementMap::kDynamic
                                                                  : ElementMap::kDynamicUnsigned));
  }
  return wide;
}

// body(scale, first element, rows, columns of it) for each block of a moment in 8 bits.
template <class Body>
void for_moment_blocks(const TensorType& type, float* scales, const Body& body) {
  const std::int64_t rows = type.dim(0), columns = type.dim(1);
  for (std::int64_t row = 0; row < rows; row += kBlockSide)
    for (std::int64_t column = 0; column < columns; column += kBlockSide)
      body(*scales++, row * columns + column, std::min(kBlockSide, rows - row),
           std::min(kBlockSide, columns - column));
}

template <bool kSigned>
void decode(const TensorView& moment, float* values) {
  const std::int64_t width = moment.type->dim(1);
  const auto* codes = moment.as<const std::uint8_t>();
  for_moment_blocks(*moment.type, moment.scales<float>(),
                    [&](float scale, std::int64_t first, std::int64_t rows, std::int64_t columns) {
                      for (std::int64_t row = 0; row < rows; ++row)
                        for (std::int64_t i = first + row * width;
                             i < first + row * width + columns; ++i)
                          values[i] = dequantize<kSigned>(codes[i], scale);
                    });
}

template <bool kSigned>
void encode(const float* values, const TensorView& moment) {
  const std::int64_t width = moment.type->dim(1);
  auto* codes = moment.as<std::uint8_t>();
  for_moment_blocks(
      *moment.type, moment.scales<float>(),
      [&](float& scale, std::int64_t first, std::int64_t rows, std::int64_t columns) {
        float largest = 0;
        const auto for_elements = [&](const auto& body) {
          for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t i = first + row * width; i < first + row * width + columns; ++i)
              body(i);
        };
        for_elements([&](std::int64_t i) { largest = std::max(largest, std::abs(values[i])); });
        const float inverse = inverse_scale(largest);
        for_elements([&](std::int64_t i) { codes[i] = quantize<kSigned>(values[i], inverse); });
        scale = inverse == 0 ? 0 : largest;
      });
}

// As the rule's own table says.
void check_numbers(const spec::Attributes& attributes) {
  for (const spec::RuleNumber& number : spec::row_of(spec::UpdateRule::kAdamw).numbers) {
    const double value = spec::get_double(attributes, number.name);
    const bool is_fraction = number.range == spec::NumberRange::kFraction;
    ANABATIC_REQUIRE(std::isfinite(value) && value >= 0 && (!is_fraction || value < 1),
                     "[adamw] {}: expected a number {}, got {}", number.name,
                     is_fraction ? "in [0, 1)" : "of at least 0", value);
  }
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
      // With room to begin at a multiple of 64.
      const std::int64_t room = bytes + 63;
      if (room > std::ssize(workspace)) workspace.resize(static_cast<std::size_t>(room));
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

std::int64_t adamw_moment_bytes(AdamWMoments moments, std::int64_t rows, std::int64_t columns) {
  return moment_type(moments, AdamWMoment::kFirst, rows, columns).num_bytes();
}

void decode_moment(AdamWMoment which, const void* moment, float* values, std::int64_t rows,
                   std::int64_t columns) {
  const TensorType type = moment_type(AdamWMoments::kInt8, which, rows, columns);
  which == AdamWMoment::kFirst ? decode<true>(view_of(type, moment), values)
                               : decode<false>(view_of(type, moment), values);
}

void encode_moment(AdamWMoment which, const float* values, void* moment, std::int64_t rows,
                   std::int64_t columns) {
  const TensorType type = moment_type(AdamWMoments::kInt8, which, rows, columns);
  which == AdamWMoment::kFirst ? encode<true>(values, view_of(type, moment))
                               : encode<false>(values, view_of(type, moment));
}

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
  ANABATIC_REQUIRE(std::isfinite(learning_rate) && learning_rate >= 0,
                   "[adamw] expected a learning rate of at least 0, got {}", learning_rate);
  ANABATIC_REQUIRE(step >= 1 && step <= std::numeric_limits<std::int32_t>::max(),
                   "[adamw] expected a step of at least 1, got {}", step);
  spec::Attributes attributes = spec::to_attributes(spec::OptimizerStep{});
  attributes["beta1"] = numbers.beta1;
  attributes["beta2"] = numbers.beta2;
  attributes["epsilon"] = numbers.epsilon;
  attributes["weight_decay"] = numbers.weight_decay;
  check_numbers(attributes);
  const std::lock_guard lock(impl_->mutex);
  const TensorType number{.dtype = DType::kFloat32, .shape = {}};
  const TensorType count{.dtype = DType::kInt32, .shape = {}};
  const auto clip = static_cast<float>(clip_factor), rate = static_cast<float>(learning_rate);
  const auto at = static_cast<std::int32_t>(step);
  for (const AdamWParameter& parameter : parameters) {
    const TensorType type{.dtype = DType::kFloat32, .shape = {parameter.rows, parameter.columns}};
    const auto moment = [&](AdamWMoment which) {
      return moment_type(numbers.moments, which, parameter.rows, parameter.columns);
    };
    const TensorType first_type = moment(AdamWMoment::kFirst),
                     second_type = moment(AdamWMoment::kSecond);
    if (numbers.moments == AdamWMoments::kBFloat16) attributes["stream"] = parameter.stream;
    const TensorView value = view_of(type, parameter.value),
                     first = view_of(first_type, parameter.first_moment),
                     second = view_of(second_type, parameter.second_moment);
    impl_->run("optimizer_step",
               std::array{value, view_of(type, parameter.gradient), first, second,
                          view_of(number, &clip), view_of(number, &rate), view_of(count, &at)},
               std::array{value, first, second}, attributes);
  }
}

}  // namespace anabatic
