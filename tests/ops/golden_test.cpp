// SPDX-License-Identifier: Apache-2.0
// `ref` against PyTorch and transformers: goldens.py writes goldens.h.
#include <gtest/gtest.h>

#include "ops/goldens.h"
#include "spec/router.h"
#include "support/comparator.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr auto kF64 = DType::kFloat64;
constexpr auto kI32 = DType::kInt32;

Values values(std::vector<double> data, std::initializer_list<std::int64_t> shape,
              DType dtype = kF64) {
  return {tensor_type(dtype, shape), std::move(data)};
}
Values scalar(double value) { return values({value}, {}); }

void expect_equal(const Values& got, const std::vector<double>& want, DType dtype = kF64,
                  bool zeros_expected = false) {
  const Values wanted{got.type, want};
  EXPECT_EQ(
      compare(got, wanted, agreement_tolerances(wanted, dtype), {.zeros_expected = zeros_expected})
          .report,
      "");
}

TEST(RefOptimizerStep, OfAdamwFollowsPyTorchForThreeSteps) {
  Values p = values(goldens::kAdamwStart, {5}), m = values(std::vector<double>(5), {5}), v = m;
  for (std::size_t step = 0; step < 3; ++step) {
    const auto begin = goldens::kAdamwGradients.begin() + static_cast<std::ptrdiff_t>(5 * step);
    const Values gradient = values({begin, begin + 5}, {5});
    const auto out = run_in_double({"optimizer_step",
                                    {{"rule", std::string("adamw")},
                                     {"beta1", 0.9},
                                     {"beta2", 0.95},
                                     {"epsilon", 1e-6},
                                     {"weight_decay", 0.1}},
                                    {p, gradient, m, v, scalar(0.5), scalar(0.01),
                                     values({static_cast<double>(step + 1)}, {}, kI32)},
                                    {p.type, p.type, p.type}});
    p = out[0];
    m = out[1];
    v = out[2];
  }
  expect_equal(p, goldens::kAdamwParameter);
  expect_equal(m, goldens::kAdamwFirst);
  expect_equal(v, goldens::kAdamwSecond);
}

TEST(RefAttention, EqualsPyTorchCausalWithGroupsForwardAndBackward) {
  const spec::Attributes attributes{{"num_heads", std::int64_t{4}},
                                    {"num_kv_heads", std::int64_t{2}},
                                    {"scale", 0.7},
                                    {"window", std::int64_t{0}}};
  std::vector<Values> inputs{
      values(goldens::kAttentionQ, {5, 12}), values(goldens::kAttentionK, {5, 6}),
      values(goldens::kAttentionV, {5, 4}), values({0, 0, 0, 0, 0}, {5}, kI32),
      values({1, 2, 3, 4, 5}, {5}, kI32)};
  const auto out = run_in_double(
      {"attention", attributes, inputs, {tensor_type(kF64, {5, 8}), tensor_type(kF64, {5, 4})}});
  expect_equal(out[0], goldens::kAttentionOut);
  inputs.insert(inputs.end(), {out[0], out[1], out[0]});
  const auto d = run_in_double(
      {"attention_gradient", attributes, inputs, {inputs[0].type, inputs[1].type, inputs[2].type}});
  expect_equal(d[0], goldens::kAttentionDq);
  expect_equal(d[1], goldens::kAttentionDk);
  expect_equal(d[2], goldens::kAttentionDv);
}

TEST(RefAttention, EqualsTransformersGptOssWithSinksForwardAndBackward) {
  spec::Attributes attributes{{"num_heads", std::int64_t{4}},
                              {"num_kv_heads", std::int64_t{2}},
                              {"scale", 0.7},
                              {"window", std::int64_t{2}}};
  std::vector<Values> inputs{
      values(goldens::kAttentionQ, {5, 12}), values(goldens::kAttentionK, {5, 6}),
      values(goldens::kAttentionV, {5, 4}),  values({0, 0, 0, 0, 0}, {5}, kI32),
      values({1, 2, 3, 4, 5}, {5}, kI32),    values(goldens::kSinksSinks, {4})};
  const Values sinks = inputs.back();
  const auto out = run_in_double(
      {"attention", attributes, inputs, {tensor_type(kF64, {5, 8}), tensor_type(kF64, {5, 4})}});
  expect_equal(out[0], goldens::kSinksOut);
  inputs.pop_back();
  inputs.insert(inputs.end(), {out[0], out[1], out[0]});
  attributes["with_delta"] = true;
  const auto d = run_in_double({"attention_gradient",
                                attributes,
                                inputs,
                                {inputs[0].type, inputs[1].type, inputs[2].type, out[1].type}});
  expect_equal(d[0], goldens::kSinksDq);
  expect_equal(d[1], goldens::kSinksDk);
  expect_equal(d[2], goldens::kSinksDv);
  const auto dsinks = run_in_double({"sinks_gradient", {}, {d[3], out[1], sinks}, {sinks.type}});
  expect_equal(dsinks[0], goldens::kSinksDsinks);
}

TEST(RefCrossEntropy, EqualsPyTorchWithAnIgnoredLabel) {
  const Values logits = values(goldens::kCrossEntropyLogits, {4, 6}),
               labels = values({2, -100, 5, 0}, {4}, kI32), inverse_tokens = scalar(1.0 / 3.0);
  const auto out = run_in_double({"cross_entropy",
                                  {},
                                  {logits, labels, inverse_tokens},
                                  {tensor_type(kF64, {}), tensor_type(kF64, {4})}});
  expect_equal(out[0], goldens::kCrossEntropyLoss);
  const auto d = run_in_double({"cross_entropy_gradient",
                                {{"dtype", std::string("f64")}},
                                {logits, labels, inverse_tokens, out[1], scalar(1)},
                                {logits.type}});
  expect_equal(d[0], goldens::kCrossEntropyGradient);
}

std::vector<Values> route(std::size_t layer) {
  const auto begin = goldens::kRouterLogits.begin() + static_cast<std::ptrdiff_t>(35 * layer);
  return run_in_double(
      {"router",
       {{"top_k", std::int64_t{2}}, {"normalize", true}},
       {values({begin, begin + 35}, {7, 5})},
       {tensor_type(kF64, {7, 2}), tensor_type(kI32, {7, 2}), tensor_type(kF64, {7, 5}),
        tensor_type(kF64, {5}), tensor_type(kF64, {5})}});
}

TEST(RefRouter, EqualsTransformersMixtral) {
  const auto out = route(0);
  expect_equal(out[0], goldens::kRouterWeights);
  EXPECT_EQ(out[1].data, goldens::kRouterExperts);
}

struct RouterGolden {
  const char* name;
  spec::RouterForm form;
  const std::vector<double>&weights, &gradient;
};

// Weights of all experts, 0 where they are not chosen.
Values dense(const Values& weights, const Values& experts) {
  Values result = values(std::vector<double>(9 * 12, 0.0), {9, 12});
  for (std::size_t i = 0; i < weights.data.size(); ++i)
    result.data[i / 3 * 12 + static_cast<std::size_t>(experts.data[i])] = weights.data[i];
  return result;
}

TEST(RefRouter, EqualsTransformersOfEveryForm) {
  using enum spec::RouterScore;
  const RouterGolden cases[] = {
      {"deepseek_v2",
       {.groups = 4, .group_top_k = 2, .barred = spec::BarredExperts::kZero, .scale = 2.5},
       goldens::kDeepseekV2Weights,
       goldens::kDeepseekV2Gradient},
      {"deepseek_v3",
       {.score = kSigmoid,
        .has_bias = true,
        .groups = 4,
        .group_top_k = 2,
        .group_score = spec::GroupScore::kTop2,
        .normalizes = true,
        .epsilon = 1e-20,
        .scale = 2.5},
       goldens::kDeepseekV3Weights,
       goldens::kDeepseekV3Gradient},
      {"ernie4_5_moe",
       {.has_bias = true, .normalizes = true, .floor = 0.5},
       goldens::kErnieWeights,
       goldens::kErnieGradient},
      {"minimax_m2",
       {.score = kSigmoid, .has_bias = true, .normalizes = true},
       goldens::kMiniMaxWeights,
       goldens::kMiniMaxGradient}};
  const Values logits = values(goldens::kGroupLogits, {9, 12}),
               bias = values(goldens::kGroupBias, {12});
  for (const RouterGolden& golden : cases) {
    SCOPED_TRACE(golden.name);
    spec::RouterForm form = golden.form;
    form.top_k = 3;
    std::vector<Values> inputs{logits};
    if (form.has_bias) inputs.push_back(bias);
    const auto out =
        run_in_double({"router",
                       spec::to_attributes(form),
                       inputs,
                       {tensor_type(kF64, {9, 3}), tensor_type(kI32, {9, 3}), logits.type,
                        tensor_type(kF64, {12}), tensor_type(kF64, {12})}});
    expect_equal(dense(out[0], out[1]), golden.weights, DType::kFloat32, true);
    Values dweights = out[0];
    for (std::size_t i = 0; i < dweights.data.size(); ++i)
      dweights.data[i] =
          goldens::kGroupCotangents[i / 3 * 12 + static_cast<std::size_t>(out[1].data[i])];
    const auto gradient =
        run_in_double({"router_gradient",
                       spec::gradient_attributes(form),
                       {form.score == kSigmoid ? logits : out[2], out[1], out[0], dweights},
                       {logits.type}});
    expect_equal(gradient[0], golden.gradient, DType::kFloat32, true);
  }
}

// transformers sums the loss in f32.
TEST(RefLoadBalancingLoss, EqualsTransformersOverTwoLayers) {
  const auto first = route(0), second = route(1);
  const auto out = run_in_double({"load_balancing_loss",
                                  {{"top_k", std::int64_t{2}}},
                                  {scalar(1.0 / 7.0), first[3], first[4], second[3], second[4]},
                                  {tensor_type(kF64, {})}});
  expect_equal(out[0], goldens::kRouterLoss, DType::kFloat32);
}

TEST(RefRmsNorm, RoundsInBf16WhereTransformersDoes) {
  const Values x = values(goldens::kNormX, {3, 8}, DType::kBFloat16);
  const auto out = run_reference({"rms_norm",
                                  {{"epsilon", 1e-5}},
                                  {x, values(goldens::kNormWeight, {8}, DType::kFloat32)},
                                  {x.type}});
  EXPECT_EQ(out[0].values().data, goldens::kNormOut);
}

}  // namespace
}  // namespace anabatic::testing
