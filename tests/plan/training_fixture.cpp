// SPDX-License-Identifier: Apache-2.0
#include "plan/training_fixture.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/philox.h"
#include "device/thread_team.h"
#include "ir/op_schema.h"
#include "ops/table.h"
#include "passes/slice_optimizer.h"
#include "passes/split_parameters.h"
#include "runtime/swap/swap_space.h"
#include "runtime/verify_schedule.h"
#include "spec/activation.h"
#include "tensor/half.h"
#include "tensor/panels.h"
#include "tensor/split_float.h"

namespace anabatic::testing {
namespace {

using ir::GraphBuilder;
using ir::Phase;
using ir::StateKind;
using ir::StateRole;
using ir::ValueId;

void add_loss(GraphBuilder& builder, ValueId logits) {
  builder.set_tag({.phase = Phase::kForward, .segment = intern("loss")});
  const ValueId labels = builder.batch_input("labels", tensor_type(DType::kInt32, {kNumTokens}));
  const ValueId scale = builder.step_input("inverse_tokens", tensor_type(DType::kFloat32, {}));
  const std::vector<ValueId> loss = builder.add("cross_entropy", {logits, labels, scale});
  builder.output(loss[0], "loss");
  builder.graph().objective = loss[0];
  builder.step_input("learning_rate", tensor_type(DType::kFloat32, {}));
  builder.step_input("step", tensor_type(DType::kInt32, {}));
}

ValueId moe_block(GraphBuilder& builder, ValueId x, int layer, std::string_view activation,
                  bool has_biases, std::vector<ValueId>& routing) {
  constexpr std::int64_t kHidden = 8, kInner = 12, kExperts = 5, kTopK = 2;
  const std::string prefix = fmt::format("layers.{}.", layer);
  const auto tag = [&](const char* segment) {
    builder.set_tag({.phase = Phase::kForward, .layer = layer, .segment = intern(segment)});
  };
  const auto parameter = [&](const std::string& name, std::initializer_list<std::int64_t> shape) {
    return builder.state(prefix + name, tensor_type(DType::kFloat32, shape), StateRole::kParameter);
  };
  tag("router");
  const ValueId norm =
      builder.add1("rms_norm", {x, parameter("mlp_norm.weight", {kHidden})}, {{"epsilon", 1e-6}});
  const ValueId logits =
      builder.add1("linear", {norm, parameter("router.weight", {kExperts, kHidden})});
  const std::vector<ValueId> routed =
      builder.add("router", {logits}, {{"top_k", kTopK}, {"normalize", true}});
  routing.push_back(routed[3]);
  routing.push_back(routed[4]);
  tag("dispatch");
  const std::vector<ValueId> sorted =
      builder.add("route_sort", {routed[1]}, {{"num_experts", kExperts}});
  const ValueId rows = builder.add1("permute", {norm, sorted[0]}, {{"top_k", kTopK}});
  tag("experts");
  const spec::Attributes attributes{{"activation", std::string(activation)}};
  const auto product = [&](const std::string& name) {
    std::vector<ValueId> inputs{rows, parameter(name + ".weight", {kExperts, kInner, kHidden}),
                                sorted[2]};
    if (!has_biases) return builder.add1("grouped_linear", inputs);
    inputs.push_back(parameter(name + ".bias", {kExperts, kInner}));
    return builder.add1("grouped_linear", inputs, {{"bias", true}});
  };
  std::vector<ValueId> operands;
  if (is_gated(spec::activation_of(attributes))) operands.push_back(product("experts.gate"));
  operands.push_back(product("experts.up"));
  const ValueId inner = builder.add1("activation", operands, attributes);
  const ValueId down = builder.add1(
      "grouped_linear",
      {inner, parameter("experts.down.weight", {kExperts, kHidden, kInner}), sorted[2]});
  tag("combine");
  ValueId output = builder.add1("unpermute", {down, routed[0], sorted[1]});
  if (has_biases)
    output = builder.add1(
        "expert_bias",
        {output, parameter("experts.down.bias", {kExperts, kHidden}), routed[0], routed[1]});
  return builder.add1("add", {x, output});
}

void fill_floats(std::span<std::byte> bytes, std::uint64_t seed, std::uint64_t stream,
                 double scale) {
  auto* values = reinterpret_cast<float*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i)
    values[i] = static_cast<float>(scale * random_normal(seed, stream, i));
}

std::vector<std::byte> copy(const TensorView& view) {
  return {view.data, view.data + view.type->num_bytes()};
}

// The bytes of a state, in memory or a copy of those on disk.
class StateBytes {
 public:
  StateBytes(const runtime::StateStore& store, Name name)
      : store_(store), name_(name), view_(store.find(name)) {
    if (store.tier(name) == runtime::Tier::kMemory) return;
    copy_.resize(static_cast<std::size_t>(view_.type->num_bytes()));
    store.swap()->read_bytes(store.region(name), 0, copy_);
    view_.data = copy_.data();
  }
  const TensorView& view() const { return view_; }
  // What was changed of a copy.
  void put_back() const {
    if (!copy_.empty()) store_.swap()->write_bytes(store_.region(name_), 0, copy_);
  }

 private:
  const runtime::StateStore& store_;
  Name name_;
  TensorView view_;
  std::vector<std::byte> copy_;
};

// A parameter, whole or split into upper and lower 16 bits, element by element in row-major order.
class Parameter {
 public:
  Parameter(const runtime::StateStore& store, Name name) : state_(store, name) {
    for (const Name low : store.parts(ir::StateRole::kLower, name))
      low_.push_back(std::make_unique<StateBytes>(store, low));
  }
  const TensorView& view() const { return state_.view(); }
  bool is_split() const { return !low_.empty(); }
  std::int64_t size() const { return view().type->num_elements(); }
  float get(std::int64_t i) const {
    const std::int64_t at = element_offset(*view().type, i);
    return is_split() ? merge_float({view().as<BFloat16>()[at], low(i)}) : view().as<float>()[at];
  }
  void set(std::int64_t i, float value) const {
    const std::int64_t at = element_offset(*view().type, i);
    if (!is_split()) {
      view().as<float>()[at] = value;
      return;
    }
    view().as<BFloat16>()[at] = split_float(value).high;
    low(i) = split_float(value).low;
  }
  void put_back() const {
    state_.put_back();
    for (const auto& low : low_) low->put_back();
  }

 private:
  // The lower 16 bits of element i, in the slice that holds it.
  std::uint16_t& low(std::int64_t i) const {
    std::size_t slice = 0;
    for (; i >= low_[slice]->view().type->num_elements(); ++slice)
      i -= low_[slice]->view().type->num_elements();
    const TensorView& view = low_[slice]->view();
    return view.as<std::uint16_t>()[element_offset(*view.type, i)];
  }

  StateBytes state_;
  std::vector<std::unique_ptr<StateBytes>> low_;  // whole, or slices; empty: not split
};

// In row-major order, upper and lower 16 bits merged; derived packings as they are.
std::vector<std::byte> copy_rows(const runtime::StateStore& store, Name name) {
  const Parameter parameter(store, name);
  const TensorView& view = parameter.view();
  if (!parameter.is_split() &&
      (view.type->layout != panels_layout(false) || view.type->dtype != DType::kFloat32))
    return copy(view);
  std::vector<std::byte> rows(static_cast<std::size_t>(parameter.size()) * sizeof(float));
  for (std::int64_t i = 0; i < parameter.size(); ++i) {
    const float value = parameter.get(i);
    std::memcpy(rows.data() + static_cast<std::size_t>(i) * sizeof(float), &value, sizeof value);
  }
  return rows;
}

}  // namespace

ir::Graph random_graph(std::uint64_t seed) {
  ir::Graph graph;
  graph.name = fmt::format("random_{}", seed);
  GraphBuilder builder(graph, ops::find_op);
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random_below(seed, 7, draw++, bound); };
  constexpr std::int64_t kWidths[] = {4, 8, 16};
  std::vector<std::vector<ValueId>> values(3), weights(9);
  builder.set_tag({.phase = Phase::kForward, .segment = intern("mlp")});
  for (std::size_t w = 0; w < 3; ++w)
    values[w].push_back(builder.batch_input(
        fmt::format("x{}", w), tensor_type(DType::kFloat32, {kNumTokens, kWidths[w]})));
  const auto pick = [&](std::size_t w) {
    // Prefers late values, so that the graph grows deep as well as wide.
    const std::size_t back = std::min<std::size_t>(below(4), values[w].size() - 1);
    return values[w][values[w].size() - 1 - back];
  };
  const auto weight = [&](std::size_t from, std::size_t to) {
    auto& list = weights[from * 3 + to];
    if (list.empty() || below(3) == 0)
      list.push_back(builder.state(fmt::format("w{}.{}.{}.weight", from, to, list.size()),
                                   tensor_type(DType::kFloat32, {kWidths[to], kWidths[from]}),
                                   StateRole::kParameter));
    return list[below(list.size())];
  };
  const std::uint64_t num_nodes = 10 + below(30);
  for (std::uint64_t i = 0; i < num_nodes; ++i) {
    builder.set_tag({.phase = Phase::kForward,
                     .layer = static_cast<std::int32_t>(i / 8),
                     .segment = intern("mlp")});
    const std::size_t w = below(3);
    switch (below(5)) {
      case 0:
        values[w].push_back(builder.add1("add", {pick(w), pick(w)}));
        break;
      case 1:
        values[w].push_back(builder.add1("scale", {pick(w)}, {{"factor", 0.75}}));
        break;
      case 2: {
        const char* gated[] = {"swiglu", "geglu", "geglu_tanh", "swiglu_clamped"};
        values[w].push_back(
            builder.add1("activation", {pick(w), pick(w)}, {{"activation", gated[below(4)]}}));
        break;
      }
      case 3: {
        const char* plain[] = {"silu", "gelu", "gelu_tanh", "relu2"};
        values[w].push_back(
            builder.add1("activation", {pick(w)}, {{"activation", plain[below(4)]}}));
        break;
      }
      default: {
        const std::size_t to = below(3);
        const ValueId x = pick(w);
        values[to].push_back(builder.add1("linear", {x, weight(w, to)}));
      }
    }
  }
  std::vector<ValueId> parts;
  for (std::size_t w = 0; w < 3; ++w) {
    const ValueId x = pick(w);
    parts.push_back(builder.add1("linear", {x, weight(w, 0)}));
  }
  const ValueId sum = builder.add1("add", {builder.add1("add", {parts[0], parts[1]}), parts[2]});
  const ValueId head = builder.state("head.weight", tensor_type(DType::kFloat32, {kVocabulary, 4}),
                                     StateRole::kParameter);
  add_loss(builder, builder.add1("linear", {sum, head}));
  return graph;
}

ir::Graph moe_graph(int num_layers, bool is_tied, std::string_view activation, bool has_biases) {
  ir::Graph graph;
  graph.name = is_tied ? "tied_moe" : "untied_moe";
  GraphBuilder builder(graph, ops::find_op);
  builder.set_tag({.phase = Phase::kForward, .segment = intern("embedding")});
  const ValueId tokens = builder.batch_input("tokens", tensor_type(DType::kInt32, {kNumTokens}));
  const ValueId table = builder.state(
      "embedding.weight", tensor_type(DType::kFloat32, {kVocabulary, 8}), StateRole::kParameter);
  ValueId x = builder.add1("embedding", {table, tokens});
  std::vector<ValueId> routing;
  for (int layer = 0; layer < num_layers; ++layer)
    x = moe_block(builder, x, layer, activation, has_biases, routing);
  builder.set_tag({.phase = Phase::kForward, .segment = intern("head")});
  const ValueId head =
      is_tied ? table
              : builder.state("head.weight", tensor_type(DType::kFloat32, {kVocabulary, 8}),
                              StateRole::kParameter);
  add_loss(builder, builder.add1("linear", {x, head}));
  routing.insert(routing.begin(),
                 builder.step_input("inverse_real_tokens", tensor_type(DType::kFloat32, {})));
  const ValueId aux = builder.add1("load_balancing_loss", routing, {{"top_k", std::int64_t{2}}});
  builder.output(aux, "aux_loss");
  const ValueId weighted = builder.add1("scale", {aux}, {{"factor", 0.01}});
  graph.objective = builder.add1("add", {*graph.objective, weighted});
  return graph;
}

void expect_gradients_as_near(const ir::Graph& graph, const StepsOptions& options,
                              const StepsResult& got, const StepsResult& separate, double least) {
  constexpr double kMostNoise = 0.1;
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
    return std::sqrt(sum);
  };
  StepsOptions in_fp32 = options;
  in_fp32.compile.precision = lower::Precision::kFp32;
  in_fp32.compile.only_kernels = "ref";
  const StepsResult exact = run_steps(graph, in_fp32);
  ASSERT_EQ(got.float_gradients.size(), exact.float_gradients.size());
  for (const auto& [name, want] : exact.float_gradients) {
    const double size = distance(want, std::vector<float>(want.size(), 0)),
                 noise = distance(separate.float_gradients.at(name), want);
    EXPECT_LE(noise, kMostNoise * size) << name;
    EXPECT_LE(distance(got.float_gradients.at(name), want), 2 * noise + least * size) << name;
  }
}

void initialise(const lower::Compiled& compiled, runtime::StateStore& store, std::uint64_t seed) {
  for (const ir::State& state : compiled.graph.states) {
    if (state.kind() != StateKind::kParameter) continue;
    const Parameter parameter(store, state.name);
    std::vector<float> rows(static_cast<std::size_t>(parameter.size()));
    fill_floats(std::as_writable_bytes(std::span(rows)), seed, stream_of(text(state.name)), 0.5);
    for (std::int64_t i = 0; i < parameter.size(); ++i)
      parameter.set(i, rows[static_cast<std::size_t>(i)]);
    parameter.put_back();
  }
  for (const ir::State& state : compiled.graph.states) {
    if (state.kind() != StateKind::kDerived) continue;
    const Parameter from(store, state.owner);
    const TensorView to = store.find(state.name);
    std::memset(to.data, 0, static_cast<std::size_t>(to.type->num_bytes()));
    for (std::int64_t i = 0; i < from.size(); ++i) {
      const std::int64_t at = element_offset(*to.type, i);
      const float value = from.get(i);
      if (to.type->dtype == DType::kBFloat16)
        to.as<BFloat16>()[at] = to_bfloat16_half_away(value);
      else if (to.type->dtype == DType::kFloat16)
        to.as<Float16>()[at] = to_float16(value);
      else
        to.as<float>()[at] = value;
    }
  }
}

void fill_inputs(const lower::Compiled& compiled, runtime::Executor& executor,
                 const StepsOptions& options, int step, int micro_batch) {
  for (const runtime::NamedOperand& input : compiled.program.inputs) {
    const std::span<std::byte> bytes = executor.input(input.name);
    auto* floats = reinterpret_cast<float*>(bytes.data());
    auto* ints = reinterpret_cast<std::int32_t*>(bytes.data());
    const std::uint64_t batch =
        static_cast<std::uint64_t>((options.same_batch ? 0 : step) * 100 + micro_batch);
    if (input.name == "learning_rate") {
      floats[0] = 0.01f;
    } else if (input.name == "inverse_tokens" || input.name == "inverse_real_tokens") {
      floats[0] = 1.0f / static_cast<float>(2 * kNumTokens);
    } else if (input.name == "step") {
      ints[0] = step + 1;
    } else if (input.operand.type.dtype == DType::kInt32) {
      const auto bound = static_cast<std::uint64_t>(
          input.name == "tokens" && step > 0 ? options.num_tokens_used : kVocabulary);
      for (std::size_t i = 0; i < bytes.size() / 4; ++i)
        ints[i] = static_cast<std::int32_t>(
            random_below(options.seed, stream_of(input.name) + batch, i, bound));
    } else {
      fill_floats(bytes, options.seed, stream_of(input.name) + batch, 1.0);
    }
  }
}

StepsResult run_steps(const ir::Graph& forward, const StepsOptions& options) {
  const lower::Compiled compiled =
      lower::compile(forward, options.compile, {.num_threads = options.num_threads});
  runtime::StateStore store;
  if (!compiled.program.windows.empty())
    store.set_swap(std::make_unique<runtime::swap::SwapSpace>(
        runtime::swap::SwapOptions{.directory = std::filesystem::temp_directory_path()}));
  device::ThreadTeam team(options.num_threads);
  runtime::Executor executor(compiled.program, store, team, options.executor);
  executor.observe(options.observer);
  initialise(compiled, store, options.seed);
  const std::vector<spec::StepEntry> schedule =
      runtime::schedule_of(compiled.program, options.end_micro_batch - options.begin_micro_batch);
  StepsResult result;
  result.peak_bytes = compiled.plan.peak_bytes();
  for (int step = options.begin_step; step < options.end_step; ++step) {
    float loss = 0;
    for (const spec::StepEntry& entry : schedule) {
      if (entry.action == spec::Action::kUpdate) break;
      if (entry.action == spec::Action::kForward)
        fill_inputs(compiled, executor, options, step,
                    options.begin_micro_batch + entry.micro_batch);
      executor.run(entry);
      if (entry.action == spec::Action::kBackward) loss += *executor.output("loss").as<float>();
    }
    result.losses.push_back(loss);
    if (step + 1 == options.end_step)
      for (const ir::State& state : compiled.graph.states)
        if (state.kind() == StateKind::kGradient && executor.has_output(text(state.name))) {
          const TensorView view = executor.output(text(state.name));
          result.gradients[std::string(text(state.name))] = copy(view);
          result.float_gradients[std::string(text(state.name))] = {
              view.as<float>(), view.as<float>() + view.type->num_elements()};
        }
    if (executor.has_action(spec::Action::kUpdate)) executor.run(schedule.back());
  }
  for (const Name name : store.names())
    if (store.part(name).role != ir::StateRole::kLower)
      result.states[std::string(text(name))] = copy_rows(store, name);
  // Slices of a state become the whole.
  for (const passes::SlicedState& sliced : passes::sliced_states(compiled.graph)) {
    if (sliced.role == ir::StateRole::kLower) continue;
    std::vector<std::byte>& whole = result.states[std::string(text(sliced.name))];
    for (const passes::StateSlice& slice : sliced.slices) {
      const auto part = result.states.extract(std::string(text(slice.name)));
      whole.insert(whole.end(), part.mapped().begin(), part.mapped().end());
    }
  }
  return result;
}

}  // namespace anabatic::testing
