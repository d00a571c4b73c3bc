// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/rounding.h"
#include "layer/layer_table.h"
#include "lower/lower.h"
#include "passes/differentiate.h"
#include "plan/plan.h"

namespace anabatic::layer {
namespace {

using spec::kAlignmentBytes;

// The list that an external operand of a program is in, and its place there.
enum class Source : std::uint8_t { kInput, kSaved, kSeed, kPacking, kResult };
struct Slot {
  Source source;
  std::size_t index;
  bool is_used;
};

bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kAlignmentBytes == 0;
}

bool is_integer(const LayerTensor& tensor) {
  return tensor.dtype == LayerDtype::kInt32 || tensor.dtype == LayerDtype::kInt64;
}

// Bytes of a program in addition to its operands: nodes of maps, labels, bound calls. A guess.
constexpr std::int64_t kBytesOfCall = 600, kBytesOfAttribute = 100;

std::int64_t bytes_of(const runtime::Program& program) {
  std::int64_t bytes = 0;
  for (const runtime::Call& call : program.calls) {
    bytes +=
        kBytesOfCall + std::ssize(call.prepared) + kBytesOfAttribute * std::ssize(call.attributes);
    bytes += (std::ssize(call.inputs) + std::ssize(call.outputs)) *
             std::int64_t{sizeof(runtime::Operand) + sizeof(TensorView) + 32};
  }
  return bytes;
}

std::int64_t bytes_of(const ir::Graph& graph) {
  return std::ssize(graph.nodes) * kBytesOfCall +
         std::ssize(graph.values) * std::int64_t{sizeof(ir::Value) + 32};
}

template <class T>
void check_range(const std::string& layer, const LayerTensor& tensor, const IntegerRange& range,
                 const T* values, std::int64_t count) {
  std::int64_t last = range.low;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = values[i];
    if (range.ignored && value == *range.ignored) continue;
    ANABATIC_REQUIRE(range.low <= value && value <= range.high,
                     "[{}] expected {} in [{}, {}], got {} at element {}", layer, tensor.name,
                     range.low, range.high, value, i);
    ANABATIC_REQUIRE(!range.never_falls || value >= last,
                     "[{}] expected {} never to fall, got {} after {} at element {}", layer,
                     tensor.name, value, last, i);
    last = value;
  }
  if (!range.has_both_ends || count == 0) return;
  ANABATIC_REQUIRE(values[0] == range.low && last == range.high,
                   "[{}] expected {} from {} to {}, got {} to {}", layer, tensor.name, range.low,
                   range.high, values[0], last);
}

}  // namespace

class LayerProgram::Bound {
 public:
  Bound(const LayerProgram& layer, ir::Graph graph, spec::Action action,
        const std::vector<std::string>& results)
      : layer_(layer) {
    const LayerTarget& target = layer.target_;
    const plan::Plan plan = plan::make_plan(graph, *target.device,
                                            {.only_kernels = target.only_kernels,
                                             .find_kernels = target.plugins->find_kernels(),
                                             .external_operands = true});
    program_ = lower::lower(graph, plan, *target.device);
    find_slots(results);
    executor_ = std::make_unique<runtime::Executor>(
        program_, target.memory->store, *target.team,
        runtime::ExecutorOptions{.poison = target.poison, .frame = &target.memory->frame});
    entry_ = runtime::lone_entry(program_, action);
    addresses_.resize(slots_.size());
  }

  void run(const LayerOperands& operands) {
    stage(operands);
    for (std::size_t i = 0; i < slots_.size(); ++i) addresses_[i] = address(slots_[i], operands, i);
    if (const bool is_profiled = layer_.target_.memory->profile.has_value();
        is_profiled != is_observed_) {
      executor_->observe(is_profiled ? runtime::Observer{.on_call = on_call, .context = this}
                                     : runtime::Observer{});
      is_observed_ = is_profiled;
    }
    executor_->run(entry_, addresses_);
  }

  const runtime::Program& program() const { return program_; }

 private:
  static void on_call(void* context, const runtime::CallEvent& event) {
    const LayerProgram& layer = static_cast<const Bound*>(context)->layer_;
    const std::string kernel(event.call.kernel->name);
    LayerKernelTime& time =
        (*layer.target_.memory->profile)[{layer.signature_.layer, event.call.label, kernel}];
    time.layer = layer.signature_.layer;
    time.call = event.call.label;
    time.kernel = kernel;
    ++time.calls;
    time.nanoseconds += event.nanoseconds;
  }

  void find_slots(const std::vector<std::string>& results) {
    for (std::size_t i = 0; i < program_.externals.size(); ++i) {
      const runtime::NamedOperand& operand = program_.externals[i];
      const bool is_input = static_cast<std::int32_t>(i) < program_.num_external_inputs;
      Slot slot = is_input ? input_slot(operand.name)
                           : Slot{Source::kResult, index_in(results, operand.name), true};
      slot.is_used = std::ranges::any_of(program_.calls, [&](const runtime::Call& call) {
        return is_among(call.inputs, operand.operand) || is_among(call.outputs, operand.operand);
      });
      slots_.push_back(slot);
    }
    staged_.resize(slots_.size());
  }

  static bool is_among(const std::vector<runtime::Operand>& list, const runtime::Operand& one) {
    return std::ranges::any_of(list, [&](const runtime::Operand& operand) {
      return operand.arena == spec::Arena::kExternal && operand.offset == one.offset;
    });
  }

  std::size_t index_in(const std::vector<std::string>& names, const std::string& name) const {
    const auto found = std::ranges::find(names, name);
    ANABATIC_CHECK(found != names.end(), "[{}] unknown result {}", layer_.signature_.layer, name);
    return static_cast<std::size_t>(found - names.begin());
  }

  Slot input_slot(const std::string& name) const {
    const auto& inputs = layer_.signature_.inputs;
    if (const auto found = std::ranges::find(inputs, name, &LayerTensor::name);
        found != inputs.end())
      return {Source::kInput, static_cast<std::size_t>(found - inputs.begin()), true};
    const auto& saved = layer_.saved_;
    if (const auto found = std::ranges::find(saved, name, &SavedTensor::name); found != saved.end())
      return {Source::kSaved, static_cast<std::size_t>(found - saved.begin()), true};
    for (std::size_t i = 0; i < layer_.outputs_.size(); ++i)
      if (passes::seed_name(layer_.outputs_[i].name) == name) return {Source::kSeed, i, true};
    for (std::size_t i = 0; i < layer_.packings_.size(); ++i)
      if (packed_name(i) == name) return {Source::kPacking, i, true};
    ANABATIC_CHECK(false, "[{}] unknown operand {}", layer_.signature_.layer, name);
  }

  static const void* given(const Slot& slot, const LayerOperands& operands) {
    switch (slot.source) {
      case Source::kInput:
        return operands.inputs[slot.index];
      case Source::kSaved:
        return operands.saved[slot.index];
      case Source::kSeed:
        return operands.seeds[slot.index];
      case Source::kPacking:
        return operands.packings[slot.index];
      case Source::kResult:
        break;
    }
    return operands.results[slot.index];
  }

  // Bytes of a copy of the operand that kernels can take; 0 where they take it as it is.
  std::int64_t staged_bytes(std::size_t i, const LayerOperands& operands) const {
    const Slot& slot = slots_[i];
    if (!slot.is_used || slot.source == Source::kResult) return 0;
    const void* data = given(slot, operands);
    const bool is_absent = slot.source == Source::kSeed && data == nullptr;
    const bool is_wide = slot.source == Source::kInput && data != nullptr &&
                         layer_.signature_.inputs[slot.index].dtype == LayerDtype::kInt64;
    if (is_aligned(data) && !is_absent && !is_wide) return 0;
    return program_.externals[i].operand.type.num_bytes();
  }

  void stage(const LayerOperands& operands) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      staged_[i] = staged_bytes(i, operands);
      bytes += round_up(staged_[i], kAlignmentBytes);
    }
    layer_.target_.memory->staged.reserve(bytes);
    std::byte* to = layer_.target_.memory->staged.memory().data();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].is_used && slots_[i].source == Source::kInput) check(slots_[i].index, operands);
      if (staged_[i] == 0) continue;
      copy(to, i, operands);
      to += round_up(staged_[i], kAlignmentBytes);
    }
  }

  void copy(std::byte* to, std::size_t i, const LayerOperands& operands) const {
    const Slot& slot = slots_[i];
    const void* from = given(slot, operands);
    const auto bytes = static_cast<std::size_t>(staged_[i]);
    if (from == nullptr) {
      std::memset(to, 0, bytes);
    } else if (slot.source == Source::kInput &&
               layer_.signature_.inputs[slot.index].dtype == LayerDtype::kInt64) {
      const std::int64_t count = program_.externals[i].operand.type.num_elements();
      auto* narrow = reinterpret_cast<std::int32_t*>(to);
      const auto* wide = static_cast<const std::byte*>(from);
      for (std::int64_t e = 0; e < count; ++e) {
        std::int64_t value;
        std::memcpy(&value, wide + e * std::int64_t{sizeof value}, sizeof value);
        narrow[e] = static_cast<std::int32_t>(value);
      }
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  // The values of an integer input.
  void check(std::size_t input, const LayerOperands& operands) const {
    const LayerTensor& tensor = layer_.signature_.inputs[input];
    const void* data = operands.inputs[input];
    if (!is_integer(tensor) || data == nullptr) return;
    const std::int64_t count = to_type(tensor).num_elements();
    for (const IntegerRange& range : layer_.ranges_) {
      if (range.input != input) continue;
      if (tensor.dtype == LayerDtype::kInt32)
        check_range(layer_.signature_.layer, tensor, range, static_cast<const std::int32_t*>(data),
                    count);
      else
        check_range(layer_.signature_.layer, tensor, range, static_cast<const std::int64_t*>(data),
                    count);
    }
  }

  std::byte* address(const Slot& slot, const LayerOperands& operands, std::size_t i) {
    if (i == 0) next_staged_ = layer_.target_.memory->staged.memory().data();
    if (staged_[i] > 0)
      return std::exchange(next_staged_, next_staged_ + round_up(staged_[i], kAlignmentBytes));
    // The executor only reads inputs.
    return static_cast<std::byte*>(const_cast<void*>(given(slot, operands)));
  }

  const LayerProgram& layer_;
  runtime::Program program_;
  std::unique_ptr<runtime::Executor> executor_;
  runtime::StepEntry entry_{};
  bool is_observed_ = false;
  std::vector<Slot> slots_;            // by index into Program::externals
  std::vector<std::int64_t> staged_;   // likewise: bytes of copies in this run
  std::vector<std::byte*> addresses_;  // likewise
  std::byte* next_staged_ = nullptr;
};

LayerProgram::LayerProgram(const LayerSignature& signature, const LayerTarget& target)
    : signature_(signature), target_(target) {
  const LayerRow& row = checked_row(signature, *target.plugins);
  const ir::FindOp find_op = target.plugins->find_op();
  LayerBuilder builder(signature_, false, find_op);
  row.build(builder);
  LayerGraph graph = builder.finish();
  ranges_ = graph.ranges;
  const std::vector<std::string> names = graph.outputs;
  SplitLayer split = split_layer(std::move(graph), signature_, find_op);
  for (const std::string& name : names) {
    const TensorType& type = split.forward.value(*split.forward.find_output(name)).type;
    outputs_.push_back({name, to_layer_dtype(type.dtype), type.shape});
  }
  std::vector<std::string> results = names;
  for (const SavedValue& value : split.saved) {
    SavedTensor tensor;
    tensor.name = value.name;
    tensor.dtype = to_layer_dtype(value.type.dtype);
    tensor.shape = value.type.shape;
    tensor.output = value.output;
    tensor.gradient = value.gradient;
    saved_.push_back(std::move(tensor));
    results.push_back(value.name);
  }
  for (const PackedValue& value : split.packed) packings_.push_back(value.packing);
  for (PackedValue& value : split.packed)
    packers_.push_back(std::make_unique<Bound>(*this, std::move(value.graph),
                                               spec::Action::kForward,
                                               std::vector<std::string>{value.name}));
  forward_ =
      std::make_unique<Bound>(*this, std::move(split.forward), spec::Action::kForward, results);
  backward_graph_ = std::move(split.backward);
  if (backward_graph_)
    (void)backward_of({signature_.gradients.begin(), signature_.gradients.end()});
}

LayerProgram::~LayerProgram() = default;

LayerProgram::Bound& LayerProgram::backward_of(const std::set<std::string>& inputs) {
  if (const auto found = backwards_.find(inputs); found != backwards_.end()) return *found->second;
  std::vector<std::string> results;
  for (const LayerTensor& input : signature_.inputs)
    results.push_back(passes::input_gradient_name(input.name));
  auto made = std::make_unique<Bound>(*this, backward_for(*backward_graph_, inputs),
                                      spec::Action::kBackward, results);
  return *backwards_.emplace(inputs, std::move(made)).first->second;
}

void LayerProgram::check_count(std::string_view what, std::size_t expected,
                               std::size_t given) const {
  ANABATIC_REQUIRE(given == expected, "[{}] expected {} {}, got {}", signature_.layer, expected,
                   what, given);
}

void LayerProgram::check_packings(std::span<const void* const> packings, bool in_forward) const {
  check_count("packings", packings_.size(), packings.size());
  for (std::size_t i = 0; i < packings_.size(); ++i)
    ANABATIC_REQUIRE(packings[i] != nullptr ||
                         !(in_forward ? packings_[i].in_forward : packings_[i].in_backward),
                     "[{}] expected the packing {} of {}, got none", signature_.layer,
                     packings_[i].form, signature_.inputs[packings_[i].input].name);
}

void LayerProgram::forward(std::span<const void* const> inputs, std::span<void* const> outputs,
                           std::span<void* const> saved, std::span<const void* const> packings) {
  check_count("inputs", signature_.inputs.size(), inputs.size());
  check_packings(packings, true);
  check_count("outputs", outputs_.size(), outputs.size());
  check_count("saved tensors", saved_.size(), saved.size());
  std::vector<void*> results(outputs.begin(), outputs.end());
  results.insert(results.end(), saved.begin(), saved.end());
  forward_->run({.inputs = inputs, .packings = packings, .results = results});
}

void LayerProgram::backward(std::span<const void* const> inputs, std::span<const void* const> saved,
                            std::span<const void* const> seeds, std::span<void* const> gradients,
                            std::span<const void* const> packings) {
  check_packings(packings, false);
  check_count("inputs", signature_.inputs.size(), inputs.size());
  check_count("saved tensors", saved_.size(), saved.size());
  check_count("gradients of outputs", outputs_.size(), seeds.size());
  check_count("gradients of inputs", signature_.inputs.size(), gradients.size());
  std::set<std::string> wanted;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i] == nullptr) continue;
    const std::string& name = signature_.inputs[i].name;
    ANABATIC_REQUIRE(std::ranges::find(signature_.gradients, name) != signature_.gradients.end(),
                     "[{}] expected gradients that the signature names, got '{}'", signature_.layer,
                     name);
    wanted.insert(name);
  }
  if (wanted.empty()) return;
  backward_of(wanted).run({.inputs = inputs,
                           .saved = saved,
                           .seeds = seeds,
                           .packings = packings,
                           .results = gradients});
}

void LayerProgram::pack(std::size_t packing, const void* weight, void* to) {
  ANABATIC_REQUIRE(packing < packings_.size(), "[{}] expected a packing below {}, got {}",
                   signature_.layer, packings_.size(), packing);
  std::vector<const void*> inputs(signature_.inputs.size());
  inputs[packings_[packing].input] = weight;
  packers_[packing]->run({.inputs = inputs, .results = std::span(&to, 1)});
}

std::string LayerProgram::text() const {
  std::string result = runtime::print(forward_->program());
  for (const auto& [inputs, backward] : backwards_) result += runtime::print(backward->program());
  return result;
}

std::int64_t LayerProgram::bytes() const {
  std::int64_t bytes = std::int64_t{sizeof(LayerProgram)} + bytes_of(forward_->program());
  if (backward_graph_) bytes += bytes_of(*backward_graph_);
  for (const auto& [inputs, backward] : backwards_) bytes += bytes_of(backward->program());
  for (const auto& packer : packers_) bytes += bytes_of(packer->program());
  return bytes;
}

}  // namespace anabatic::layer
