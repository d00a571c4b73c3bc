// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"
#include "device/memory.h"
#include "device/thread_team.h"
#include "runtime/shared_frame.h"
#include "runtime/swap/window_driver.h"
#include "spec/execution.h"
#include "spec/product.h"
#include "tensor/tensor_type.h"

namespace anabatic::runtime {
namespace {

constexpr int kPoison = 0xFF;
const std::string kFallback = "fallback";

bool overlap(const Operand& a, const Operand& b) {
  if (a.arena != b.arena || (a.arena == Arena::kPersistent && a.state != b.state)) return false;
  return a.offset < b.offset + b.type.num_bytes() && b.offset < a.offset + a.type.num_bytes();
}

// An operand of the caller, and the views that take its address in a run.
struct External {
  const NamedOperand* operand;
  std::int64_t bytes;
  std::vector<std::uint32_t> views;  // indexes into Impl::views
};

// A call with all its pointers. They point into vectors of Impl that do not change after
// construction.
struct BoundCall {
  const Call* call;
  kernels::Arguments arguments;
  std::uint32_t poison_begin = 0, poison_end = 0;
};

}  // namespace

struct Executor::Impl {
  Impl(const Program& the_program, StateStore& store, device::ThreadTeam& the_team,
       ExecutorOptions the_options)
      : program(the_program),
        team(the_team),
        options(the_options),
        own_frame(the_options.frame != nullptr ? 0 : the_program.frame_bytes),
        gradient(the_program.gradient_bytes),
        inputs(the_program.input_bytes) {
    ANABATIC_REQUIRE(team.num_threads() <= program.num_threads,
                     "[executor] the program was planned for {} threads, the team has {}",
                     program.num_threads, team.num_threads());
    for (const StateSlot& slot : program.states)
      states.push_back(store.add(slot.name, slot.type,
                                 slot.is_on_disk ? Tier::kDisk : Tier::kMemory, slot.part));
    if (options.frame != nullptr) {
      ANABATIC_REQUIRE(program.windows.empty() && program.exchanges.empty(),
                       "[executor] expected a program without disk and exchanges for a frame that "
                       "others share, got {} windows and {} exchanges",
                       program.windows.size(), program.exchanges.size());
      options.frame->reserve(program.frame_bytes);
    }
    bound_frame = frame().data();
    for (const NamedOperand& operand : program.externals)
      externals.push_back({&operand, operand.operand.type.num_bytes(), {}});
    windows.emplace(program, store,
                    std::span(frame().data(), static_cast<std::size_t>(frame().bytes())));
    exchanges.emplace(program, options.rank,
                      [&](const Operand& operand) { return resolve(operand); });
    reserve();
    for (const Call& call : program.calls) bound.push_back(bind(call));
    counts.resize(bound.size());
    for (std::size_t i = 0; i < bound.size(); ++i) {
      bound[i].arguments.watch = windows->watch(i);
      if (is_int8_product(program.calls[i])) bound[i].arguments.counts = &counts[i];
    }
    check_variants();
  }

  static bool is_int8_product(const Call& call) {
    return call.attributes.contains(kFallback) || call.attributes.contains(spec::kPackedFormat) ||
           std::ranges::any_of(call.inputs,
                               [](const Operand& operand) { return is_int8_panels(operand.type); });
  }

  void check_variants() const {
    for (const auto& [action, variants] : program.variants)
      for (const Variant& variant : variants) {
        const auto layout = static_cast<std::size_t>(variant.layout);
        ANABATIC_CHECK(layout < program.layouts.size(), "[executor] {}: layout {} of {}",
                       spec::to_string(action), variant.layout, program.layouts.size());
        for (const std::int32_t call : variant.calls)
          ANABATIC_CHECK(static_cast<std::size_t>(call) < program.calls.size(),
                         "[executor] {}: call {} of {}", spec::to_string(action), call,
                         program.calls.size());
      }
  }

  TensorView resolve(const Operand& operand) const {
    const std::int64_t bytes = operand.type.num_bytes();
    const auto at = [&](const device::Memory& memory) -> std::byte* {
      ANABATIC_CHECK(operand.offset >= 0 && operand.offset % spec::kAlignmentBytes == 0 &&
                         operand.offset + bytes <= memory.bytes(),
                     "[executor] {} at {} does not lie in an arena of {} bytes",
                     to_string(operand.type), operand.offset, memory.bytes());
      return memory.data() + operand.offset;
    };
    switch (operand.arena) {
      case Arena::kFrame:
        return {at(frame()), &operand.type};
      case Arena::kGradient:
        return {at(gradient), &operand.type};
      case Arena::kInput:
        return {at(inputs), &operand.type};
      case Arena::kExternal:
        return {nullptr, &operand.type};
      case Arena::kPersistent:
        break;
    }
    ANABATIC_CHECK(operand.state >= 0 && static_cast<std::size_t>(operand.state) < states.size(),
                   "[executor] state {} of {}", operand.state, states.size());
    const TensorView& state = states[static_cast<std::size_t>(operand.state)];
    ANABATIC_CHECK(state.data != nullptr || bytes == 0, "[executor] {} is on disk",
                   text(program.states[static_cast<std::size_t>(operand.state)].name));
    ANABATIC_CHECK(operand.offset >= 0 && operand.offset + bytes <= state.type->num_bytes(),
                   "[executor] {} at {} does not lie in state {}", to_string(operand.type),
                   operand.offset,
                   text(program.states[static_cast<std::size_t>(operand.state)].name));
    return {state.data + operand.offset, &operand.type};
  }

  // These vectors must not reallocate: bind() keeps spans into them.
  void reserve() {
    std::size_t num_views = 0, num_outputs = 0;
    std::int64_t prepared_bytes = 0;
    for (const Call& call : program.calls) {
      num_views += call.inputs.size() + call.outputs.size();
      num_outputs += call.outputs.size();
      prepared_bytes += round_up(std::ssize(call.prepared), spec::kAlignmentBytes);
    }
    bound.reserve(program.calls.size());
    views.reserve(num_views);
    accumulate = std::make_unique<bool[]>(num_outputs);
    prepared = device::Memory(prepared_bytes);
  }

  std::span<const TensorView> resolve_all(const std::vector<Operand>& operands) {
    const std::size_t begin = views.size();
    for (const Operand& operand : operands) {
      if (operand.arena == Arena::kExternal)
        external_at(operand.offset).views.push_back(static_cast<std::uint32_t>(views.size()));
      views.push_back(resolve(operand));
    }
    return {views.data() + begin, operands.size()};
  }

  External& external_at(std::int64_t offset) {
    const auto found = std::ranges::find_if(externals, [&](const External& external) {
      return external.operand->operand.offset == offset;
    });
    ANABATIC_CHECK(found != externals.end(), "[executor] no external operand at {}", offset);
    return *found;
  }

  const device::Memory& frame() const {
    return options.frame != nullptr ? options.frame->memory() : own_frame;
  }

  std::byte* workspace_of(const Call& call) const {
    if (call.workspace_bytes == 0) return nullptr;
    return (call.workspace_arena == Arena::kGradient ? gradient : frame()).data() +
           call.workspace_offset;
  }

  // A shared frame has moved: all addresses in it are new.
  void follow_frame() {
    bound_frame = frame().data();
    std::size_t i = 0;
    for (BoundCall& call : bound) {
      for (const std::vector<Operand>* operands : {&call.call->inputs, &call.call->outputs})
        for (const Operand& operand : *operands) views[i++] = resolve(operand);
      call.arguments.workspace = workspace_of(*call.call);
    }
  }

  void take_externals(std::span<std::byte* const> addresses) {
    ANABATIC_REQUIRE(addresses.size() == externals.size(),
                     "[executor] expected addresses of {} external operands, got {}",
                     externals.size(), addresses.size());
    check_externals(addresses);
    for (std::size_t i = 0; i < externals.size(); ++i)
      for (const std::uint32_t view : externals[i].views) views[view].data = addresses[i];
  }

  void check_externals(std::span<std::byte* const> addresses) const {
    const auto is_used = [&](std::size_t i) {
      return !externals[i].views.empty() && externals[i].bytes > 0;
    };
    const auto num_inputs = static_cast<std::size_t>(program.num_external_inputs);
    for (std::size_t i = 0; i < externals.size(); ++i) {
      if (!is_used(i)) continue;
      const NamedOperand& operand = *externals[i].operand;
      ANABATIC_REQUIRE(
          addresses[i] != nullptr &&
              reinterpret_cast<std::uintptr_t>(addresses[i]) % spec::kAlignmentBytes == 0,
          "[executor] expected {} '{}' {} at a multiple of {} bytes, got address {}",
          i < num_inputs ? "input" : "output", operand.name, to_string(operand.operand.type),
          spec::kAlignmentBytes, static_cast<const void*>(addresses[i]));
      if (i < num_inputs) continue;
      for (std::size_t j = 0; j < i; ++j)
        ANABATIC_REQUIRE(!is_used(j) || addresses[i] + externals[i].bytes <= addresses[j] ||
                             addresses[j] + externals[j].bytes <= addresses[i],
                         "[executor] expected output '{}' in bytes of its own, got some of '{}'",
                         operand.name, externals[j].operand->name);
    }
  }

  std::span<const bool> copy_modes(const Call& call) {
    bool* const begin = accumulate.get() + num_modes;
    std::copy(call.adds.begin(), call.adds.end(), begin);
    num_modes += call.adds.size();
    return {begin, call.adds.size()};
  }

  BoundCall bind(const Call& call) {
    ANABATIC_CHECK(call.kernel && call.adds.size() == call.outputs.size(),
                   "[executor] {}: {} modes, {} outputs", call.label, call.adds.size(),
                   call.outputs.size());
    const device::Memory& arena = call.workspace_arena == Arena::kGradient ? gradient : frame();
    ANABATIC_CHECK(call.workspace_offset >= 0 &&
                       call.workspace_offset % spec::kAlignmentBytes == 0 &&
                       call.workspace_offset + call.workspace_bytes <= arena.bytes(),
                   "[executor] {}: workspace [{}, +{}) in an arena of {} bytes", call.label,
                   call.workspace_offset, call.workspace_bytes, arena.bytes());
    const void* prepared_data = nullptr;
    if (!call.prepared.empty()) {
      prepared_data =
          std::memcpy(prepared.data() + prepared_used, call.prepared.data(), call.prepared.size());
      prepared_used += round_up(std::ssize(call.prepared), spec::kAlignmentBytes);
    }
    kernels::Arguments arguments{.inputs = resolve_all(call.inputs),
                                 .outputs = resolve_all(call.outputs),
                                 .attributes = &call.attributes,
                                 .workspace = workspace_of(call),
                                 .prepared = prepared_data,
                                 .accumulate = copy_modes(call),
                                 .launch = {.team = &team},
                                 .label = call.label};
    BoundCall result{&call, arguments};
    result.poison_begin = static_cast<std::uint32_t>(poisons.size());
    if (options.poison) add_poisons(call);
    result.poison_end = static_cast<std::uint32_t>(poisons.size());
    return result;
  }

  void add_poisons(const Call& call) {
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.adds[i]) continue;
      if (std::any_of(call.inputs.begin(), call.inputs.end(),
                      [&](const Operand& input) { return overlap(input, call.outputs[i]); }))
        continue;
      poisons.push_back(static_cast<std::uint32_t>(i));
    }
  }

  static void fill(std::byte* data, std::int64_t bytes) {
    if (bytes > 0) std::memset(data, kPoison, static_cast<std::size_t>(bytes));
  }

  void fill_poison(const BoundCall& call) const {
    for (std::uint32_t i = call.poison_begin; i < call.poison_end; ++i) {
      const TensorView& output = call.arguments.outputs[poisons[i]];
      fill(output.data, output.type->num_bytes());
    }
    fill(call.arguments.workspace, call.call->workspace_bytes);
  }

  static void fill_poison(const device::Memory& memory) { fill(memory.data(), memory.bytes()); }

  void run_one(Action action, const BoundCall& call) const {
    if (options.poison) fill_poison(call);
    const auto is_used = [](const Observer& observer) { return observer.on_call != nullptr; };
    if (std::ranges::none_of(observers, is_used)) return call.call->kernel->run(call.arguments);
    CallEvent event{action,
                    *call.call,
                    static_cast<std::int32_t>(&call - bound.data()),
                    call.arguments.inputs,
                    call.arguments.outputs,
                    0,
                    0};
    for (const Observer& observer : observers)
      if (is_used(observer) && observer.before_call != nullptr)
        observer.before_call(observer.context, event);
    const auto first = std::ranges::find_if(observers, is_used);
    event.begin_nanoseconds = first->now();
    call.call->kernel->run(call.arguments);
    event.nanoseconds = first->now() - event.begin_nanoseconds;
    for (const Observer& observer : observers)
      if (is_used(observer)) observer.on_call(observer.context, event);
  }

  // A new micro-batch begins: all values of the frame are dead. In a step's first one gradients are
  // dead too.
  void poison_arenas(std::int32_t micro_batch) {
    windows->wait_all();
    fill_poison(frame());
    if (micro_batch == 0) fill_poison(gradient);
  }

  const Variant& variant_of(const StepEntry& entry) const {
    const auto found = program.variants.find(entry.action);
    ANABATIC_REQUIRE(found != program.variants.end(),
                     "[executor] expected an action of the program, got {}",
                     spec::to_string(entry.action));
    const auto variant = static_cast<std::size_t>(entry.variant);
    ANABATIC_REQUIRE(variant < found->second.size(),
                     "[executor] {}: expected one of {} variants, got {}",
                     spec::to_string(entry.action), found->second.size(), entry.variant);
    return found->second[variant];
  }

  const Operand* find(const std::vector<NamedOperand>& list, std::string_view name) const {
    for (const NamedOperand& named : list)
      if (named.name == name) return &named.operand;
    return nullptr;
  }

  const Program& program;
  device::ThreadTeam& team;
  ExecutorOptions options;
  std::array<Observer, kNumObservers> observers{};
  device::Memory own_frame, gradient, inputs, prepared;
  const std::byte* bound_frame = nullptr;  // to which views and workspaces point
  std::vector<External> externals;         // by index into Program::externals
  std::int64_t prepared_used = 0;
  std::vector<TensorView> states;
  std::vector<TensorView> views;
  std::unique_ptr<bool[]> accumulate;
  std::size_t num_modes = 0;
  std::vector<std::uint32_t> poisons;         // indexes into a call's outputs: what BoundCall names
  std::vector<BoundCall> bound;               // by index into Program::calls
  std::vector<kernels::CodingCounts> counts;  // likewise
  std::map<std::int32_t, spec::Attributes> attributes;  // of calls with another fallback
  std::int32_t last_layout = 0;                         // of the variant that ran last
  // Destroyed before the arenas, whose bytes they use.
  std::optional<swap::WindowDriver> windows;
  std::optional<ExchangeDriver> exchanges;
};

Executor::Executor(const Program& program, StateStore& store, device::ThreadTeam& team,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(program, store, team, options)) {}
Executor::~Executor() = default;

const kernels::CodingCounts& Executor::counts(std::int32_t call) const {
  return impl_->counts.at(static_cast<std::size_t>(call));
}

void Executor::clear_counts() { std::ranges::fill(impl_->counts, kernels::CodingCounts{}); }

void Executor::set_fallback(std::int32_t call, std::int64_t fallback) {
  BoundCall& bound = impl_->bound.at(static_cast<std::size_t>(call));
  const std::int64_t planned =
      spec::get_int_or(bound.call->attributes, kFallback, spec::kNoFallback);
  const auto has_room = [](std::int64_t value) { return value >= 0 && value < spec::kNoFallback; };
  ANABATIC_REQUIRE(has_room(planned) && has_room(fallback),
                   "[executor] {}: expected a fallback below {}, planned and now, got {} and {}",
                   bound.call->label, spec::kNoFallback, planned, fallback);
  const auto [found, is_new] = impl_->attributes.try_emplace(call, bound.call->attributes);
  found->second.at(kFallback) = fallback;
  bound.arguments.attributes = &found->second;
}

void Executor::observe(Observer observer, std::size_t place) {
  impl_->observers.at(place) = observer;
}

std::span<std::byte> Executor::input(std::string_view name) {
  const Operand* operand = impl_->find(impl_->program.inputs, name);
  ANABATIC_REQUIRE(operand, "[executor] expected the name of an input, got '{}'", name);
  ANABATIC_REQUIRE(operand->arena != Arena::kExternal,
                   "[executor] input '{}' is in memory of the caller", name);
  return {impl_->resolve(*operand).data, static_cast<std::size_t>(operand->type.num_bytes())};
}

bool Executor::has_input(std::string_view name) const {
  return impl_->find(impl_->program.inputs, name) != nullptr;
}

TensorView Executor::output(std::string_view name) const {
  const std::vector<Layout>& layouts = impl_->program.layouts;
  const Operand* operand =
      impl_->find(layouts[static_cast<std::size_t>(impl_->last_layout)].outputs, name);
  if (operand == nullptr) operand = impl_->find(layouts.front().outputs, name);
  ANABATIC_REQUIRE(operand, "[executor] expected the name of an output, got '{}'", name);
  ANABATIC_REQUIRE(operand->arena != Arena::kExternal,
                   "[executor] output '{}' is in memory of the caller", name);
  return impl_->resolve(*operand);
}

bool Executor::has_output(std::string_view name) const {
  return impl_->find(impl_->program.layouts.front().outputs, name) != nullptr;
}

bool Executor::has_action(Action action) const { return impl_->program.variants.contains(action); }

void Executor::run(const StepEntry& entry) { run(entry, {}); }

void Executor::run(const StepEntry& entry, std::span<std::byte* const> externals) {
  const Variant& variant = impl_->variant_of(entry);
  if (impl_->options.frame != nullptr) {
    impl_->options.frame->reserve(impl_->program.frame_bytes);  // has it, unless one was refused
    if (impl_->bound_frame != impl_->frame().data()) impl_->follow_frame();
  }
  impl_->take_externals(externals);
  swap::WindowDriver& windows = *impl_->windows;
  ExchangeDriver& exchanges = *impl_->exchanges;
  windows.begin(entry.action, variant);
  exchanges.begin(entry.action, variant);
  if (impl_->options.poison && entry.action == Action::kForward)
    impl_->poison_arenas(entry.micro_batch);
  impl_->last_layout = variant.layout;
  for (std::size_t i = 0; i < variant.calls.size(); ++i) {
    exchanges.before(i);
    windows.before(i);
    impl_->run_one(entry.action, impl_->bound[static_cast<std::size_t>(variant.calls[i])]);
  }
  exchanges.end(variant);
  windows.end();
  if (impl_->options.poison && entry.action == Action::kSumLeaf) Impl::fill_poison(impl_->gradient);
}

std::vector<comm::CommStats> Executor::exchanges_took() const { return impl_->exchanges->took(); }

std::int64_t Executor::arena_bytes() const {
  return impl_->own_frame.bytes() + impl_->gradient.bytes() + impl_->inputs.bytes() +
         impl_->exchanges->workspace_bytes();
}

}  // namespace anabatic::runtime
