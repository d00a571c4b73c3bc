// SPDX-License-Identifier: Apache-2.0
// A call of a function of a plugin: its operands as C structs, the services of the host, and what
// went wrong. It lives on the stack and allocates nothing.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "anabatic/plugin.h"
#include "device/thread_team.h"
#include "tensor/tensor_type.h"

namespace anabatic::plugin {

// The most operands of an op; a backward has those, the outputs and their gradients.
inline constexpr int kMostInputs = 16, kMostOutputs = 8;

inline constexpr std::array kPluginDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat64,
                                          DType::kInt32};
// None for others.
std::optional<std::int32_t> to_plugin_dtype(DType dtype);
std::optional<DType> from_plugin_dtype(std::int32_t dtype);

// InternalError for a type that no plugin knows.
anabatic_tensor to_tensor(const TensorType& type, void* data);

// Where a call is, for errors and crashes. Texts outlive the call.
struct CallPlace {
  std::string_view plugin;    // "my_ops.so"
  std::string_view op;        // "my_op"
  std::string_view function;  // "forward"
  std::string_view node;      // "layers.3.mlp my_op forward"; empty outside a program
};

class PluginCall {
 public:
  // `team` may be null: bodies then run on the caller.
  PluginCall(const CallPlace& place, const char* attributes, device::ThreadTeam* team);
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

  // InternalError beyond the most. The type is one that a plugin knows.
  void add_input(const TensorType& type, const void* data);
  void add_input(const anabatic_tensor& tensor);
  void add_output(const TensorType& type, void* data);
  void add_untyped_output();  // for a function that sets its type
  void set_workspace(void* data, std::int64_t bytes);

  const anabatic_call& raw() const { return call_; }
  const anabatic_tensor& output(int i) const { return outputs_[static_cast<std::size_t>(i)]; }

  // Calls function(call, more...), and gives what it returns. What it throws counts as a failure.
  template <class F, class... More>
  auto run(F function, More... more) {
    const Entered entered(*this);
    try {
      return function(&call_, more...);
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("it threw something that is no std::exception");
    }
    return decltype(function(&call_, more...)){1};
  }
  // The text given to fail, also by a body; empty: none was.
  std::string_view failure() const;
  // Runs a function that tells by its result whether it failed. InvalidArgument naming plugin, op,
  // function and node where it did.
  template <class F, class... More>
  void require(F function, More... more) {
    check(run(function, more...));
  }
  void check(std::int32_t result) const;

 private:
  // Marks the thread as inside the plugin, for reports of crashes.
  class Entered {
   public:
    explicit Entered(const PluginCall& call);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    const CallPlace* before_;
  };

  static void parallel_for(const anabatic_host* host, std::int64_t count, std::int64_t grain,
                           void (*body)(void*, std::int64_t, std::int64_t), void* data);
  static std::int32_t fail(const anabatic_host* host, const char* message);
  void fail(const char* message);

  static constexpr std::size_t kInputs = kMostInputs + 2 * kMostOutputs, kOutputs = kMostInputs;

  CallPlace place_;
  device::ThreadTeam* team_;
  anabatic_host host_{};
  anabatic_call call_{};
  std::array<anabatic_tensor, kInputs> inputs_;
  std::array<anabatic_tensor, kOutputs> outputs_;
  std::array<const anabatic_tensor*, kInputs> input_pointers_;
  std::array<anabatic_tensor*, kOutputs> output_pointers_;
  std::atomic<bool> has_failed_ = false;
  std::array<char, 512> message_{};
};

}  // namespace anabatic::plugin
