// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_call.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "plugin/crash.h"

namespace anabatic::plugin {

std::optional<std::int32_t> to_plugin_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ANABATIC_F32;
    case DType::kBFloat16:
      return ANABATIC_BF16;
    case DType::kFloat64:
      return ANABATIC_F64;
    case DType::kInt32:
      return ANABATIC_I32;
    default:
      return std::nullopt;
  }
}

std::optional<DType> from_plugin_dtype(std::int32_t dtype) {
  for (const DType known : kPluginDTypes)
    if (to_plugin_dtype(known) == dtype) return known;
  return std::nullopt;
}

anabatic_tensor to_tensor(const TensorType& type, void* data) {
  const auto dtype = to_plugin_dtype(type.dtype);
  ANABATIC_CHECK(dtype.has_value() && type.ndim() <= ANABATIC_MAX_NDIM,
                 "[plugin] expected a type of plugins, got {}", to_string(type));
  anabatic_tensor tensor{.size = sizeof(anabatic_tensor),
                         .dtype = *dtype,
                         .ndim = static_cast<std::int32_t>(type.ndim()),
                         .shape = {},
                         .data = data};
  std::copy(type.shape.begin(), type.shape.end(), std::begin(tensor.shape));
  return tensor;
}

PluginCall::Entered::Entered(const PluginCall& call) : before_(enter_plugin(&call.place_)) {}
PluginCall::Entered::~Entered() { (void)enter_plugin(before_); }

PluginCall::PluginCall(const CallPlace& place, const char* attributes, device::ThreadTeam* team)
    : place_(place), team_(team) {
  host_ = {.size = sizeof(host_), .context = this, .parallel_for = parallel_for, .fail = fail};
  call_ = {.size = sizeof(call_),
           .num_inputs = 0,
           .num_outputs = 0,
           .inputs = input_pointers_.data(),
           .outputs = output_pointers_.data(),
           .attributes = attributes,
           .workspace = nullptr,
           .workspace_bytes = 0,
           .host = &host_};
}

void PluginCall::add_input(const TensorType& type, const void* data) {
  add_input(to_tensor(type, const_cast<void*>(data)));  // const again in the call
}

void PluginCall::add_input(const anabatic_tensor& tensor) {
  const auto at = static_cast<std::size_t>(call_.num_inputs++);
  ANABATIC_CHECK(at < kInputs, "[plugin] {}: too many inputs", place_.op);
  inputs_[at] = tensor;
  input_pointers_[at] = &inputs_[at];
}

void PluginCall::add_output(const TensorType& type, void* data) {
  add_untyped_output();
  outputs_[static_cast<std::size_t>(call_.num_outputs) - 1] = to_tensor(type, data);
}

void PluginCall::add_untyped_output() {
  const auto at = static_cast<std::size_t>(call_.num_outputs++);
  ANABATIC_CHECK(at < kOutputs, "[plugin] {}: too many outputs", place_.op);
  outputs_[at] = {
      .size = sizeof(anabatic_tensor), .dtype = -1, .ndim = -1, .shape = {}, .data = nullptr};
  output_pointers_[at] = &outputs_[at];
}

void PluginCall::set_workspace(void* data, std::int64_t bytes) {
  call_.workspace = bytes > 0 ? data : nullptr;
  call_.workspace_bytes = bytes;
}

std::string_view PluginCall::failure() const {
  if (!has_failed_.load(std::memory_order_acquire)) return {};
  return message_.data();
}

void PluginCall::check(std::int32_t result) const {
  if (result == 0 && !has_failed_.load(std::memory_order_acquire)) return;
  const std::string where = place_.node.empty()
                                ? fmt::format("{} of {}", place_.function, place_.plugin)
                                : fmt::format("{} in {}", place_.node, place_.plugin);
  const std::string_view text = failure();
  throw InvalidArgument(fmt::format(
      "[{}] {} failed: {}", place_.op, where,
      text.empty() ? fmt::format("it returned {} and gave no reason", result) : std::string(text)));
}

void PluginCall::parallel_for(const anabatic_host* host, std::int64_t count, std::int64_t grain,
                              void (*body)(void*, std::int64_t, std::int64_t), void* data) {
  auto& call = *static_cast<PluginCall*>(host->context);
  if (count <= 0) return;
  if (grain < 1 || body == nullptr) {
    call.fail("parallel_for expects a grain of at least 1 and a body");
    return;
  }
  const auto range = [&](std::int64_t task) {
    const Entered entered(call);
    const std::int64_t begin = task * grain;
    try {
      body(data, begin, count - begin > grain ? begin + grain : count);
    } catch (const std::exception& error) {
      call.fail(error.what());
    } catch (...) {
      call.fail("a body threw something that is no std::exception");
    }
  };
  const std::int64_t num_ranges = (count - 1) / grain + 1;
  if (call.team_ != nullptr && num_ranges > 1) {
    call.team_->for_tasks(num_ranges, range);
  } else {
    for (std::int64_t task = 0; task < num_ranges; ++task) range(task);
  }
}

std::int32_t PluginCall::fail(const anabatic_host* host, const char* message) {
  static_cast<PluginCall*>(host->context)->fail(message);
  return 1;
}

// The first text counts: message_ is written by the thread that takes the lock word, before readers
// can see that there is one.
void PluginCall::fail(const char* message) {
  static constinit std::atomic_flag lock = ATOMIC_FLAG_INIT;
  while (lock.test_and_set(std::memory_order_acquire)) {
  }
  if (!has_failed_.load(std::memory_order_relaxed)) {
    const std::string_view text = message == nullptr ? "no reason given" : message;
    const std::size_t size = std::min(text.size(), message_.size() - 1);
    std::memcpy(message_.data(), text.data(), size);
    message_[size] = 0;
    has_failed_.store(true, std::memory_order_release);
  }
  lock.clear(std::memory_order_release);
}

}  // namespace anabatic::plugin
