// SPDX-License-Identifier: Apache-2.0
// A case compiled, checked and timed call by call.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "bench/check.h"
#include "bench/graph_case.h"
#include "device/topology.h"
#include "lower/call_info.h"
#include "passes/differentiate.h"
#include "train/derived_states.h"
#include "train/model_session.h"
#include "train/state_rows.h"

namespace anabatic::bench {
namespace {

// FLOPs for `ref`: a second or so.
constexpr double kCheckFlops = 4e8;
constexpr std::int64_t kFewestTokens = 4, kMostTokens = 600;
// Epsilon of AdamW: far above every gradient, so that the update is nearly linear in the gradient
// and a difference of roundings cannot turn a step around. It costs the same.
constexpr double kEpsilon = 1.0;

// A program of a case with states of its own.
struct Instance {
  GraphCase made;
  runtime::StateStore store;
  train::BoundProgram program;
  std::vector<Name> parameters;
  std::vector<ir::State> derived;
  std::vector<std::uint32_t> masks;  // a call: the parts of the case to which it belongs

  const spec::DeviceSpec& device;

  Instance(GraphCase the_case, lower::CompileOptions options, const spec::DeviceSpec& the_device,
           device::ThreadTeam& team)
      : made(std::move(the_case)), device(the_device) {
    options.with_update = made.with_update;
    options.norms_in_products = !made.without_pass.empty();  // it compares both
    options.sparsity = made.sparsity;
    options.optimizer.epsilon = kEpsilon;
    program.compiled = lower::compile(made.graph, options, device);
    for (const lower::CallInfo& info : lower::call_infos(program.compiled))
      masks.push_back(mask(info.node->tag));
    program.executor = std::make_unique<runtime::Executor>(program.compiled.program, store, team);
    for (const ir::State& state : program.compiled.graph.states) {
      if (state.kind() == ir::StateKind::kParameter) parameters.push_back(state.name);
      if (state.kind() == ir::StateKind::kDerived) derived.push_back(state);
    }
    for (const auto& [name, values] : made.batch) program.set(name, values);
  }

  std::uint32_t mask(const ir::Tag& tag) const {
    if (text(tag.segment) == kSeedSegment) return 0;
    std::uint32_t result = 0;
    for (std::size_t part = 0; part < made.parts.size(); ++part)
      if (const TimedPart& timed = made.parts[part];
          timed.segment.empty() || timed.segment == text(tag.segment))
        for (const ir::Phase phase : timed.phases)
          if (phase == tag.phase) result |= 1u << part;
    return result;
  }

  void fill(device::ThreadTeam& team) {
    for (const Name name : store.names()) {
      if (std::find(parameters.begin(), parameters.end(), name) != parameters.end()) continue;
      const TensorView view = store.find(name);
      std::fill_n(view.data, view.type->num_bytes(), std::byte{0});
    }
    for (const auto& [name, mask] : made.masks)
      std::memcpy(store.find(intern(name)).data, mask.data(), mask.size());
    for (const Name name : parameters) {
      const train::StateRows state = train::find_rows(store, name);
      train::for_row_blocks(state.state.type->num_elements(), [&](std::int64_t first,
                                                                  std::span<float> block) {
        team.for_range(static_cast<std::int64_t>(block.size()), 1024,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end; ++i)
                           block[static_cast<std::size_t>(i)] = made.value(text(name), first + i);
                       });
        train::write_rows(state, first, block);
      });
    }
    train::refresh_derived(derived, store, team, device);
  }

  void label(std::int64_t first_tokens, float learning_rate) {
    const std::vector<std::int32_t> labels = made.labels(first_tokens);
    const auto count =
        std::count_if(labels.begin(), labels.end(), [](std::int32_t value) { return value >= 0; });
    program.set("labels", labels);
    program.set_scalar("inverse_tokens",
                       1.0f / static_cast<float>(std::max<std::ptrdiff_t>(1, count)));
    program.set_scalar("learning_rate", learning_rate);
    program.set_scalar("step", std::int32_t{1});
  }

  // One micro-batch and the update: the only one of a step, or the last of two.
  void run(bool adds) {
    const std::span<const spec::StepEntry> schedule = program.schedule(adds ? 2 : 1);
    for (const spec::StepEntry& entry : schedule)
      if (entry.micro_batch == (adds ? 1 : 0)) program.executor->run(entry);
  }

  std::span<const float> gradient(Name parameter) const {
    const TensorView view =
        program.executor->output(spec::state_name(spec::StateRole::kGradient, text(parameter)));
    return {view.as<const float>(), static_cast<std::size_t>(view.type->num_elements())};
  }
};

class GraphBenchmark final : public Benchmark {
 public:
  GraphBenchmark(const train::RunConfig& run, MakeCase make, bool accumulate,
                 std::shared_ptr<device::ThreadTeam> team)
      : make_(std::move(make)),
        accumulate_(accumulate),
        options_(
            train::compile_options(run, {.name = "bench", .training = true, .as_trained = true})),
        team_(team != nullptr
                  ? std::move(team)
                  : std::make_shared<device::ThreadTeam>(static_cast<int>(run.device.threads))),
        device_(device::probe_cpu(*team_, false)),
        instance_(make_(0), options_, device_, *team_) {
    for (const TimedPart& timed : instance_.made.parts) parts_.push_back(timed.part);
    if (instance_.made.without_pass.empty()) return;
    lower::CompileOptions without = options_;
    without.disabled_passes.insert(instance_.made.without_pass);
    without_pass_.emplace(make_(0), without, device_, *team_);
    for (const TimedPart& timed : instance_.made.parts) {
      parts_.push_back(timed.part);
      parts_.back().name = "without_pass." + timed.part.name;
    }
  }

  const std::vector<Part>& parts() const override { return parts_; }
  device::ThreadTeam& team() override { return *team_; }
  std::int64_t arena_bytes() const override { return instance_.program.executor->arena_bytes(); }

  Check check() override {
    const std::int64_t tokens = checked_tokens();
    lower::CompileOptions options = options_;
    options.only_kernels = "ref";
    options.explain_dispatch = false;
    options.dump_directory.clear();
    Instance reference(make_(tokens), options, device_, *team_);
    for (Instance* side : {&reference, &instance_}) {
      side->fill(*team_);
      side->label(tokens, 1.0f);
      side->run(false);
    }
    Comparison comparison(relative_bound(reference.program.compiled.graph, options.precision),
                          tokens);
    const auto got = static_cast<float>(instance_.program.scalar("loss")),
               want = static_cast<float>(reference.program.scalar("loss"));
    comparison.add("loss", {&got, 1}, {&want, 1});
    for (const Name name : reference.parameters) compare(comparison, reference, name);
    is_ready_ = false;
    return comparison.worst();
  }

  void run(std::span<double> seconds) override {
    const std::size_t count = instance_.made.parts.size();
    if (!is_ready_) prepare(instance_);
    if (!is_ready_ && without_pass_) prepare(*without_pass_);
    is_ready_ = true;
    run(instance_, seconds.first(count));
    if (without_pass_) run(*without_pass_, seconds.subspan(count));
  }

 private:
  void prepare(Instance& instance) {
    instance.fill(*team_);
    // A rate at which repeated updates stay where they began.
    instance.label(instance.made.num_tokens, 1e-7f);
    instance.run(false);
  }

  void run(Instance& instance, std::span<double> seconds) {
    running_ = &instance;
    seconds_ = seconds;
    instance.program.executor->observe({.on_call = on_call, .context = this, .now = clock()});
    instance.run(accumulate_);
    instance.program.executor->observe({});
  }

  std::int64_t checked_tokens() const {
    const std::int64_t all = instance_.made.num_tokens;
    const double flops_a_token =
        std::max(parts_[0].flops, parts_[0].bytes) / static_cast<double>(all);
    const auto affordable = static_cast<std::int64_t>(kCheckFlops / std::max(1.0, flops_a_token));
    return std::min(all, std::clamp(affordable, kFewestTokens, kMostTokens));
  }

  void compare(Comparison& comparison, Instance& reference, Name name) {
    if (!instance_.made.with_update) {
      comparison.add(spec::state_name(spec::StateRole::kGradient, text(name)),
                     instance_.gradient(name), reference.gradient(name));
      return;
    }
    const auto values_of = [&](Instance& side, Name state) {
      const std::int64_t count = reference.store.find(state).type->num_elements();
      std::vector<float> values(static_cast<std::size_t>(count));
      train::read_rows(train::find_rows(side.store, state), 0, values);
      return values;
    };
    const auto changes = [&](Instance& side) {
      std::vector<float> change = values_of(side, name);
      for (std::size_t i = 0; i < change.size(); ++i)
        change[i] -= side.made.value(text(name), static_cast<std::int64_t>(i));
      return change;
    };
    comparison.add(fmt::format("the change of {}", text(name)), changes(instance_),
                   changes(reference));
    for (const auto moment : {spec::StateRole::kFirstMoment, spec::StateRole::kSecondMoment}) {
      const Name state = intern(spec::state_name(moment, text(name)));
      // 8-bit moments may differ by one step of rounding; tests/ops compares them.
      if (reference.store.find(state).type->is_quantized()) continue;
      comparison.add(text(state), values_of(instance_, state), values_of(reference, state));
    }
  }

  static void on_call(void* context, const runtime::CallEvent& event) {
    auto& self = *static_cast<GraphBenchmark*>(context);
    const Instance& instance = *self.running_;
    const std::uint32_t mask = instance.masks[static_cast<std::size_t>(
        &event.call - instance.program.compiled.program.calls.data())];
    for (std::size_t part = 0; part < self.seconds_.size(); ++part)
      if ((mask >> part & 1u) != 0)
        self.seconds_[part] += 1e-9 * static_cast<double>(event.nanoseconds);
  }

  MakeCase make_;
  bool accumulate_;
  lower::CompileOptions options_;
  std::shared_ptr<device::ThreadTeam> team_;
  spec::DeviceSpec device_;
  Instance instance_;
  std::optional<Instance> without_pass_;
  std::vector<Part> parts_;
  const Instance* running_ = nullptr;
  std::span<double> seconds_;
  bool is_ready_ = false;
};

}  // namespace

std::unique_ptr<Benchmark> make_graph_benchmark(const train::RunConfig& run, MakeCase make,
                                                bool accumulate,
                                                std::shared_ptr<device::ThreadTeam> team) {
  return std::make_unique<GraphBenchmark>(run, std::move(make), accumulate, std::move(team));
}

}  // namespace anabatic::bench
