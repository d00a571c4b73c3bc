// SPDX-License-Identifier: Apache-2.0
// Gradients of whole graphs in double, run node by node on ref kernels, against central differences
// of their objectives.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/text.h"
#include "ops/table.h"
#include "passes/accumulate_gradients.h"
#include "passes/differentiate.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/reference.h"
#include "support/tolerance.h"

namespace anabatic::passes {
namespace {

using testing::Values;
using Environment = std::map<ir::ValueId, Values>;

constexpr std::uint64_t kSeed = 5;

// Two documents of three tokens; one label is ignored; token 3 is never seen.
std::vector<double> batch_data(std::string_view name) {
  if (name == "tokens") return {1, 6, 1, 0, 2, 5};
  if (name == "labels") return {6, 1, -100, 2, 5, 4};
  if (name == "positions") return {0, 1, 2, 0, 1, 2};
  if (name == "key_begin") return {0, 0, 0, 3, 3, 3};
  if (name == "key_end") return {1, 2, 3, 4, 5, 6};
  if (name == "documents") return {0, 0, -1, 3, 3, 3};
  if (name == "inverse_tokens" || name == "inverse_real_tokens") return {0.2};
  if (name == "inverse_documents") return {0.5};
  ADD_FAILURE() << "no data for input " << name;
  return {};
}

// Normal deviates over the root of the fan-in, as initialisers draw them: higher derivatives of the
// objective, which central differences neglect, stay small.
Values parameter_data(const TensorType& type, std::uint64_t stream) {
  Values values = testing::random_values(type, testing::Regime::kBounded, kSeed, stream);
  for (double& value : values.data) value /= std::sqrt(static_cast<double>(type.dim(-1)));
  return values;
}

Environment inputs_of(const ir::Graph& graph) {
  Environment environment;
  for (const auto* list : {&graph.batch, &graph.step_inputs})
    for (const ir::ValueId id : *list)
      environment[id] = {graph.value(id).type, batch_data(text(graph.value(id).name))};
  std::uint64_t stream = 0;
  for (const ir::State& state : graph.states)
    if (state.kind() == ir::StateKind::kParameter)
      environment[state.before] = parameter_data(graph.value(state.before).type, stream++);
    else
      environment[state.before] = {
          graph.value(state.before).type,
          std::vector<double>(
              static_cast<std::size_t>(graph.value(state.before).type.num_elements()), 0.0)};
  return environment;
}

Values accumulated(const std::vector<Values>& terms) {
  Values sum = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i)
    for (std::size_t e = 0; e < sum.data.size(); ++e) sum.data[e] += terms[i].data[e];
  return sum;
}

Environment evaluate(const ir::Graph& graph, Environment environment) {
  for (const ir::Node& node : graph.nodes) {
    testing::OpCall call{.op = node.op->name, .attributes = node.attributes};
    for (const ir::ValueId id : node.inputs) call.inputs.push_back(environment.at(id));
    for (const ir::ValueId id : node.outputs) call.outputs.push_back(graph.value(id).type);
    if (node.op->name == "accumulate") {
      environment[node.outputs[0]] = accumulated(call.inputs);
      continue;
    }
    const std::vector<testing::HostTensor> outputs = testing::run_reference(call);
    for (std::size_t o = 0; o < outputs.size(); ++o)
      environment[node.outputs[o]] = outputs[o].values();
  }
  return environment;
}

class FiniteDifferences : public ::testing::TestWithParam<const char*> {
 protected:
  FiniteDifferences() {
    const std::string path = std::string(ANABATIC_SOURCE_DIR) +
                             "/tests/passes/differentiate/models/" + GetParam() + ".ir";
    forward_ = ir::parse(read_file(path), ops::find_op);
    ir::verify(forward_);
  }

  double objective(const Environment& inputs) const {
    return evaluate(forward_, inputs).at(*forward_.objective).data[0];
  }

  // Differences of one parameter, element by element.
  Values differences(Environment inputs, ir::ValueId parameter) const {
    Values result{.type = forward_.value(parameter).type};
    const double h = testing::difference_step();
    for (double& value : inputs.at(parameter).data) {
      const double at = value;
      value = at + h;
      const double above = objective(inputs);
      value = at - h;
      const double below = objective(inputs);
      value = at;
      result.data.push_back((above - below) / (2 * h));
    }
    return result;
  }

  ir::Graph forward_;
};

TEST_P(FiniteDifferences, EqualTheGradientOfEveryTrainedParameter) {
  ir::Graph graph = forward_;
  const PassContext context{.options = {.with_update = false}, .find_op = ops::find_op};
  ASSERT_TRUE(kDifferentiate.run(graph, context));
  ASSERT_TRUE(kAccumulateGradients.run(graph, context));
  ir::verify(graph);
  const Environment results = evaluate(graph, inputs_of(graph));
  const Environment inputs = inputs_of(forward_);
  int num_parameters = 0;
  for (const ir::State& state : forward_.states) {
    const auto gradient =
        graph.find_output(spec::state_name(ir::StateRole::kGradient, text(state.name)));
    if (!state.is_trainable) {
      EXPECT_FALSE(gradient.has_value()) << text(state.name);
      continue;
    }
    ASSERT_TRUE(gradient.has_value()) << text(state.name);
    const Values want = differences(inputs, state.before);
    double magnitude = std::abs(objective(inputs));
    for (const double value : want.data) magnitude = std::max(magnitude, std::abs(value));
    const std::vector<double> tolerances(want.data.size(),
                                         testing::difference_tolerance(magnitude));
    EXPECT_EQ(testing::compare(results.at(*gradient), want, tolerances).report, "")
        << text(state.name);
    ++num_parameters;
  }
  EXPECT_GT(num_parameters, 1);
}

// Experts as a layer: every operand is an input, and two outputs have seeds.
constexpr const char* kSeededGraph = R"(graph "experts"
  batch %0 "x": f64[5,4]
  batch %1 "experts": i32[5,2]
  batch %2 "weights": f64[5,2]
  batch %3 "key_begin": i32[5]
  state %4 "gate": f64[3,6,4]  parameter
  state %5 "up": f64[3,6,4]  parameter
  state %6 "down": f64[3,4,6]  parameter
  %7: i32[10], %8: i32[10], %9: i32[4] = route_sort(%1)  {num_experts=3}  forward segment=dispatch
  %10: f64[10,4] = permute(%0, %7)  {top_k=2}  forward segment=dispatch
  %11: f64[10,6] = grouped_linear(%10, %4, %9)  forward segment=experts
  %12: f64[10,6] = grouped_linear(%10, %5, %9)  forward segment=experts
  %13 "inner": f64[10,6] = activation(%11, %12)  {activation="swiglu"}  forward segment=experts
  %14: f64[10,4] = grouped_linear(%13, %6, %9)  forward segment=experts
  %15 "y": f64[5,4] = unpermute(%14, %2, %8)  forward segment=combine
  output %13
  output %15
)";

// Sums of an output's elements, each times its seed, are an objective.
double seeded_objective(const ir::Graph& forward, const Environment& inputs,
                        const std::map<std::string, Values>& seeds) {
  const Environment results = evaluate(forward, inputs);
  double sum = 0;
  for (const auto& [name, seed] : seeds) {
    const Values& output = results.at(*forward.find_output(name));
    for (std::size_t i = 0; i < seed.data.size(); ++i) sum += seed.data[i] * output.data[i];
  }
  return sum;
}

TEST(Seeds, GiveTheGradientsOfInputsAndParameters) {
  const ir::Graph forward = ir::parse(kSeededGraph, ops::find_op);
  ir::Graph graph = forward;
  const GradientRequest request{.outputs = {"inner", "y"}, .inputs = {"x", "weights"}};
  const PassContext context{.options = {.with_update = false, .gradients = &request},
                            .find_op = ops::find_op};
  ASSERT_TRUE(kDifferentiate.run(graph, context));
  ir::verify(graph);

  Environment inputs;
  std::map<std::string, Values> seeds;
  std::uint64_t stream = 0;
  for (const ir::ValueId id : graph.batch) {
    const std::string name(text(graph.value(id).name));
    const TensorType& type = graph.value(id).type;
    if (name == "experts")
      inputs[id] = {type, {0, 2, 2, 0, 0, 2, 2, 0, 0, 2}};  // expert 1 has no rows
    else if (type.dtype == DType::kInt32)
      inputs[id] = {type, std::vector<double>(5, 0.0)};
    else
      inputs[id] = testing::random_values(type, testing::Regime::kBounded, kSeed, ++stream);
    if (name.starts_with("seeds.")) seeds[name.substr(6)] = inputs[id];
  }
  ASSERT_EQ(seeds.size(), 2u);
  for (const ir::State& state : graph.states)
    inputs[state.before] = parameter_data(graph.value(state.before).type, ++stream);
  const Environment results = evaluate(graph, inputs);

  const auto check = [&](ir::ValueId of, const std::string& gradient) {
    Environment changed = inputs;
    Values want{.type = forward.value(of).type};
    double magnitude = std::abs(seeded_objective(forward, inputs, seeds));
    const double h = testing::difference_step();
    for (double& value : changed.at(of).data) {
      const double at = value;
      value = at + h;
      const double above = seeded_objective(forward, changed, seeds);
      value = at - h;
      want.data.push_back((above - seeded_objective(forward, changed, seeds)) / (2 * h));
      value = at;
      magnitude = std::max(magnitude, std::abs(want.data.back()));
    }
    const std::vector<double> tolerances(want.data.size(),
                                         testing::difference_tolerance(magnitude));
    const auto found = graph.find_output(gradient);
    ASSERT_TRUE(found.has_value()) << gradient;
    EXPECT_EQ(testing::compare(results.at(*found), want, tolerances).report, "") << gradient;
  };
  check(forward.batch[0], "gradients.x");
  check(forward.batch[2], "gradients.weights");
  for (const ir::State& state : forward.states)
    check(state.before, contribution_name(text(state.name), 0));
}

TEST(Seeds, WhatIsNotAskedForCostsNothing) {
  ir::Graph graph = ir::parse(kSeededGraph, ops::find_op);
  for (ir::State& state : graph.states) state.is_trainable = false;
  const GradientRequest request{.outputs = {"y"}, .inputs = {"weights"}};
  const PassContext context{.options = {.gradients = &request}, .find_op = ops::find_op};
  const std::size_t num_forward = graph.nodes.size();
  ASSERT_TRUE(kDifferentiate.run(graph, context));
  ASSERT_EQ(graph.nodes.size(), num_forward + 1);
  EXPECT_EQ(graph.nodes.back().op->name, "unpermute_gradient");
}

// The backward of an adapter has no product for the gradient of a frozen weight, and none for the
// gradient of what lies below the lowest adapter.
TEST(FrozenWeights, HaveNoProductsOfGradients) {
  ir::Graph graph = ir::parse(read_file(std::string(ANABATIC_SOURCE_DIR) +
                                        "/tests/passes/differentiate/models/low_rank.ir"),
                              ops::find_op);
  const PassContext context{.options = {.with_update = false}, .find_op = ops::find_op};
  ASSERT_TRUE(kDifferentiate.run(graph, context));
  std::map<std::string, int> counts;
  for (const ir::Node& node : graph.nodes) ++counts[std::string(node.op->name)];
  EXPECT_EQ(counts["linear_weight_gradient"], 2);          // A and B of q
  EXPECT_EQ(counts["grouped_linear_weight_gradient"], 5);  // two A and three B of experts
  EXPECT_EQ(counts["linear_input_gradient"], 3);           // head, router, B of q
  EXPECT_EQ(counts["grouped_linear_input_gradient"], 8);
  EXPECT_EQ(counts["embedding_weight_gradient"], 0);
}

INSTANTIATE_TEST_SUITE_P(Models, FiniteDifferences,
                         ::testing::Values("attention_block", "attention_sinks", "dense_mlp",
                                           "expert_biases", "low_rank", "moe_documents",
                                           "moe_layers", "tied_embeddings", "tied_low_rank"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace anabatic::passes
