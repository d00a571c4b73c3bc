// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "device/thread_team.h"
#include "kernels/byte_watch.h"
#include "support/rows_under_test.h"

namespace anabatic::testing {
namespace {

device::ThreadTeam& team_of(int num_threads) {
  static std::map<int, std::unique_ptr<device::ThreadTeam>> teams;
  std::unique_ptr<device::ThreadTeam>& team = teams[num_threads];
  if (team == nullptr) team = std::make_unique<device::ThreadTeam>(num_threads);
  return *team;
}

// Kernels book workspace for as many threads as the device has. With three of them its cache is of
// a byte, so that every result is one that bypasses the caches.
spec::DeviceSpec this_machine(int num_threads = 1) {
  spec::DeviceSpec device{.num_threads = num_threads, .instruction_sets = instruction_sets()};
  if (num_threads == 3) device.l3_bytes = 1;
  return device;
}

spec::DeviceSpec full_machine() {
  spec::DeviceSpec device = this_machine();
  device.instruction_sets = {"avx",      "avx2",     "avx_vnni", "avx512_bf16", "avx512_vnni",
                             "avx512bw", "avx512dq", "avx512f",  "avx512vl",    "bmi2",
                             "f16c",     "fma",      "amx_bf16", "amx_tile"};
  return device;
}

// The types of a call in one place, so that a Problem may point at them.
struct CallProblem {
  std::vector<TensorType> inputs;
  spec::Problem problem;

  CallProblem(const OpCall& call, const spec::DeviceSpec& device, bool adds = false) {
    for (const Values& input : call.inputs) inputs.push_back(input.type);
    problem = {.op = intern(call.op),
               .attributes = &call.attributes,
               .inputs = inputs,
               .outputs = call.outputs,
               .device = &device,
               .may_add = adds};
  }
  CallProblem(const CallProblem&) = delete;
};

GuardedBytes prepare(const kernels::Kernel& kernel, const spec::Problem& problem) {
  const std::vector<std::byte> made =
      kernel.prepare != nullptr ? kernel.prepare(problem) : std::vector<std::byte>{};
  GuardedBytes bytes(made.size());
  if (!made.empty()) std::memcpy(bytes.data(), made.data(), made.size());
  return bytes;
}

int entry(ir::Aliases list, std::size_t i) { return i < list.size() ? list[i] : -1; }

// The input that an output of the call has by this rule; -1 for none.
int input_by(ir::Aliases (*rule)(const spec::Attributes&), const OpCall& call, std::size_t output) {
  return rule != nullptr ? entry(rule(call.attributes), output) : -1;
}

// The input whose buffer an output must be; -1 for none.
int overwritten_input(const ir::OpSchema& schema, const OpCall& call, std::size_t output) {
  return input_by(schema.must_alias, call, output);
}

HostTensor output_buffer(const ir::OpSchema& schema, const OpCall& call, const RunOptions& options,
                         std::size_t o) {
  if (!options.before.empty()) return HostTensor(options.before[o]);
  const int shared = aliased_input(schema, call, o);
  if (shared >= 0 && (options.in_place || overwritten_input(schema, call, o) >= 0))
    return HostTensor(call.inputs[static_cast<std::size_t>(shared)]);
  HostTensor buffer(call.outputs[o]);
  if (schema.writes_all) buffer.bytes().poison();
  return buffer;
}

// Sums every byte that it is told of; the words that a state ends inside of are not of its sums.
class SummingWatch : public kernels::ByteWatch {
 public:
  SummingWatch(std::uint32_t outputs, const std::vector<HostTensor>& buffers) : outputs_(outputs) {
    for (const HostTensor& buffer : buffers) {
      const TensorView view = buffer.view();
      states_.push_back({view.data, view.type->num_bytes()});
    }
    for_watched([&](State& state) { state.wanted[0] = sum(state, 0, state.bytes); });
  }

  void before(std::size_t output, std::int64_t first, std::int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    State& state = states_.at(output);
    state.found[0] += sum(state, first, bytes);
    state.words[0] += words(first, bytes);
  }
  void after(std::size_t output, std::int64_t first, std::int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    State& state = states_.at(output);
    state.found[1] += sum(state, first, bytes);
    state.words[1] += words(first, bytes);
  }
  void summed(std::size_t output, std::int64_t first, std::int64_t bytes, std::uint64_t read,
              std::uint64_t written) override {
    const std::lock_guard lock(mutex_);
    State& state = states_.at(output);
    state.found[0] += read;
    state.found[1] += written;
    for (std::int64_t& count : state.words) count += words(first, bytes);
    crosses_ |= bytes == 0 || first / kBlockBytes != (first + bytes - 1) / kBlockBytes;
  }

  // After the run. Empty: every word of the watched outputs was reported once, with its sums.
  std::string violation() {
    std::string result = crosses_ ? "told of a part that does not lie in a block" : "";
    for_watched([&](State& state) {
      state.wanted[1] = sum(state, 0, state.bytes);
      const std::int64_t all = state.bytes / kernels::kWordBytes;
      for (int pass = 0; pass < 2; ++pass)
        if (state.words[pass] != all || state.found[pass] != state.wanted[pass])
          result = fmt::format("told of {} words of {} of a state, of sums {:016x}, not {:016x}",
                               state.words[pass], all, state.found[pass], state.wanted[pass]);
    });
    return result;
  }

 private:
  struct State {
    const std::byte* data;
    std::int64_t bytes;
    std::uint64_t wanted[2] = {}, found[2] = {};  // as read, as written
    std::int64_t words[2] = {};
  };
  template <class Body>
  void for_watched(Body&& body) {
    for (std::size_t i = 0; i < states_.size(); ++i)
      if ((outputs_ >> i & 1) != 0) body(states_[i]);
  }
  static std::int64_t words(std::int64_t first, std::int64_t bytes) {
    return (first + bytes) / kernels::kWordBytes - first / kernels::kWordBytes;
  }
  static std::uint64_t sum(const State& state, std::int64_t first, std::int64_t bytes) {
    std::uint64_t sum = 0;
    for (std::int64_t i = first / 8; i < (first + bytes) / 8; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, state.data + 8 * i, sizeof word);
      sum += kernels::word_sum(word, i);
    }
    return sum;
  }

  std::uint32_t outputs_;
  std::vector<State> states_;
  bool crosses_ = false;
  std::mutex mutex_;
};

std::string check_buffers(const std::vector<HostTensor>& inputs,
                          const std::vector<TensorView>& input_views,
                          const std::vector<HostTensor>& inputs_before,
                          const std::vector<HostTensor>& outputs, const GuardedBytes& workspace) {
  for (std::size_t o = 0; o < outputs.size(); ++o)
    if (!outputs[o].bytes().guards_intact()) return fmt::format("wrote outside of output {}", o);
  for (std::size_t o = 0; o < outputs.size(); ++o)
    if (!outputs[o].padding_is_zero()) return fmt::format("left what pads output {} not zero", o);
  if (!workspace.guards_intact()) return "wrote outside of its workspace";
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].bytes().guards_intact()) return fmt::format("wrote outside of input {}", i);
    const bool shared = input_views[i].data != inputs[i].view().data;
    if (!shared && !inputs[i].same_bits(inputs_before[i]))
      return fmt::format("changed input {}", i);
  }
  return {};
}

}  // namespace

bool is_reference(const kernels::Kernel& kernel) { return kernel.name.starts_with("ref:"); }

int aliased_input(const ir::OpSchema& schema, const OpCall& call, std::size_t output) {
  const int must = overwritten_input(schema, call, output),
            may = input_by(schema.may_alias, call, output);
  const int input = must >= 0 ? must : may;
  const bool fits =
      input >= 0 && call.inputs[static_cast<std::size_t>(input)].type == call.outputs[output];
  return fits ? input : -1;
}

RunResult run_kernel(const kernels::Kernel& kernel, const ir::OpSchema& schema, const OpCall& call,
                     const RunOptions& options) {
  const spec::DeviceSpec device = this_machine(options.num_threads);
  const CallProblem made(call, device, !options.before.empty());
  const GuardedBytes prepared = prepare(kernel, made.problem);
  const auto workspace_bytes =
      kernel.workspace_bytes != nullptr ? kernel.workspace_bytes(made.problem) : 0;
  const GuardedBytes workspace(static_cast<std::size_t>(workspace_bytes));
  workspace.poison();

  std::vector<HostTensor> inputs, inputs_before;
  std::vector<TensorView> input_views, output_views;
  for (const Values& input : call.inputs) {
    inputs.emplace_back(input);
    inputs_before.push_back(inputs.back().clone());
    input_views.push_back(inputs.back().view());
  }
  RunResult result;
  const auto accumulate = std::make_unique<bool[]>(call.outputs.size());
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    result.outputs.push_back(output_buffer(schema, call, options, o));
    output_views.push_back(result.outputs.back().view());
    accumulate[o] = !options.before.empty();
    const int shared = aliased_input(schema, call, o);
    if (shared >= 0 && (options.in_place || overwritten_input(schema, call, o) >= 0))
      input_views[static_cast<std::size_t>(shared)] = output_views.back();
  }
  const std::uint32_t watched_outputs =
      kernel.watched_outputs != nullptr ? kernel.watched_outputs(call.attributes, call.outputs) : 0;
  SummingWatch watch(watched_outputs, result.outputs);
  kernel.run({.inputs = input_views,
              .outputs = output_views,
              .attributes = &call.attributes,
              .workspace = workspace.data(),
              .prepared = prepared.size() > 0 ? prepared.data() : nullptr,
              .accumulate = {accumulate.get(), call.outputs.size()},
              .launch = {.team = is_reference(kernel) ? nullptr : &team_of(options.num_threads)},
              .watch = options.is_watched && watched_outputs != 0 ? &watch : nullptr});
  result.violation = check_buffers(inputs, input_views, inputs_before, result.outputs, workspace);
  if (options.is_watched && watched_outputs != 0 && result.violation.empty())
    result.violation = watch.violation();
  if (!options.is_watched && watched_outputs != 0 && result.violation.empty()) {
    RunOptions again = options;
    again.is_watched = true;
    const RunResult watched = run_kernel(kernel, schema, call, again);
    result.violation = watched.violation;
    for (std::size_t o = 0; o < result.outputs.size() && result.violation.empty(); ++o)
      if (!watched.outputs[o].same_bits(result.outputs[o]))
        result.violation = fmt::format("wrote other bits of output {} to a watch", o);
  }
  return result;
}

kernels::Support supports(const kernels::Kernel& kernel, const OpCall& call) {
  static const spec::DeviceSpec device = this_machine();
  return kernel.supports(CallProblem(call, device).problem);
}

kernels::Support supports_on_any_machine(const kernels::Kernel& kernel, const OpCall& call) {
  static const spec::DeviceSpec device = full_machine();
  return kernel.supports(CallProblem(call, device).problem);
}

}  // namespace anabatic::testing
