// SPDX-License-Identifier: Apache-2.0
// What routers do in every form, for every kernel row.
#include "spec/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/run_all.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr auto kF32 = DType::kFloat32;
constexpr auto kI32 = DType::kInt32;

Values random(std::initializer_list<std::int64_t> shape, std::uint64_t stream) {
  return random_values(tensor_type(kF32, shape), Regime::kBounded, 5, stream);
}

OpCall router_call(const spec::RouterForm& form, std::vector<Values> inputs) {
  const std::int64_t tokens = inputs[0].type.dim(0), experts = inputs[0].type.dim(1);
  return {"router",
          spec::to_attributes(form),
          std::move(inputs),
          {tensor_type(kF32, {tokens, form.top_k}), tensor_type(kI32, {tokens, form.top_k}),
           tensor_type(kF32, {tokens, experts}), tensor_type(kF32, {experts}),
           tensor_type(kF32, {experts})}};
}

TEST(Router, WeightsSumToOneAndCountsSumToRowsTimesTopK) {
  const Values logits = random({40, 9}, 0);
  const OpCall call = router_call({.top_k = 3, .normalizes = true}, {logits});
  for (const auto& out : run_all(call)) {
    EXPECT_EQ(std::accumulate(out[3].data.begin(), out[3].data.end(), 0.0), 120);
    Values sums{tensor_type(kF32, {41}), std::vector<double>(41, 1.0)};
    sums.data[40] = 40;
    Values got{sums.type, std::vector<double>(41, 0.0)};
    for (std::size_t i = 0; i < 120; ++i) got.data[i / 3] += out[0].data[i];
    for (const double sum : out[4].data) got.data[40] += sum;
    EXPECT_EQ(compare(got, sums, agreement_tolerances(sums, kF32)).report, "");
  }
}

// gpt_oss and granitemoe take the softmax of the chosen logits alone.
TEST(Router, NormalisedWeightsAreTheSoftmaxOfTheChosenLogits) {
  Values logits = random({40, 33}, 0);
  for (std::size_t i = 0; i < logits.data.size(); ++i)  // of small, usual and large logits
    logits.data[i] = static_cast<float>(logits.data[i] * (i / 33 % 3 == 0 ? 30 : 1 + i / 33 % 3));
  const Values dweights = random({40, 4}, 1);
  const spec::RouterForm form{.top_k = 4, .normalizes = true};
  const OpCall call = router_call(form, {logits});
  for (const auto& out : run_all(call)) {
    Values weights{out[0].type, {}}, dlogits{logits.type, std::vector<double>(40 * 33, 0.0)};
    for (std::size_t t = 0; t < 40; ++t) {
      const auto at = [&](std::size_t j) {
        return 33 * t + static_cast<std::size_t>(out[1].data[4 * t + j]);
      };
      double sum = 0, mean = 0;
      for (std::size_t j = 0; j < 4; ++j) sum += std::exp(logits.data[at(j)] - logits.data[at(0)]);
      for (std::size_t j = 0; j < 4; ++j) {
        weights.data.push_back(std::exp(logits.data[at(j)] - logits.data[at(0)]) / sum);
        mean += weights.data.back() * dweights.data[4 * t + j];
      }
      for (std::size_t j = 0; j < 4; ++j)
        dlogits.data[at(j)] = weights.data[4 * t + j] * (dweights.data[4 * t + j] - mean);
    }
    EXPECT_EQ(compare(out[0], weights, agreement_tolerances(weights, kF32)).report, "");
    const OpCall backward{"router_gradient",
                          spec::gradient_attributes(form),
                          {out[2], out[1], out[0], dweights},
                          {logits.type}};
    for (const auto& gradient : run_all(backward))
      EXPECT_EQ(compare(gradient[0], dlogits,
                        std::vector<double>(dlogits.data.size(), agreement_tolerance(1, kF32)),
                        {.zeros_expected = true})
                    .report,
                "");
  }
}

// The bias chooses, and the bare score weighs.
TEST(Router, ABiasMovesTheChoiceAndNotTheWeights) {
  const Values logits = random({20, 6}, 0);
  Values bias{tensor_type(kF32, {6}), {0, 0, 0, 0, 0, 5}};
  const spec::RouterForm form{.top_k = 1, .score = spec::RouterScore::kSigmoid, .has_bias = true};
  const OpCall call = router_call(form, {logits, bias});
  for (const auto& out : run_all(call)) {
    Values weights{out[0].type, {}};
    for (std::size_t t = 0; t < 20; ++t) {
      EXPECT_EQ(out[1].data[t], 5);
      weights.data.push_back(1 / (1 + std::exp(-logits.data[6 * t + 5])));
    }
    EXPECT_EQ(compare(out[0], weights, agreement_tolerances(weights, kF32)).report, "");
  }
}

// Two groups of two; a negative bias of all experts, which 0 for barred experts would outbid.
TEST(Router, ExcludedExpertsStayOutUnderNegativeBiases) {
  const Values logits{tensor_type(kF32, {1, 4}), {1, 2, 3, -4}},
      bias{tensor_type(kF32, {4}), {-2, -2, -2, -2}};
  for (const auto group_score : {spec::GroupScore::kMax, spec::GroupScore::kTop2}) {
    const spec::RouterForm form{.top_k = 2,
                                .score = spec::RouterScore::kSigmoid,
                                .has_bias = true,
                                .groups = 2,
                                .group_top_k = 1,
                                .group_score = group_score};
    const OpCall call = router_call(form, {logits, bias});
    const bool by_max = group_score == spec::GroupScore::kMax;
    for (const auto& out : run_all(call))
      EXPECT_EQ(out[1].data, by_max ? (std::vector<double>{2, 3}) : (std::vector<double>{1, 0}));
  }
}

// The best group's second expert has score 0, which a barred one of lower number ties.
TEST(Router, BarredExpertsThatCompeteAtZeroWeighNothing) {
  const Values logits{tensor_type(kF32, {1, 4}), {-0.25, -0.5, 0, -900}};
  const spec::RouterForm form{
      .top_k = 2, .groups = 2, .group_top_k = 1, .barred = spec::BarredExperts::kZero, .scale = 16};
  for (const auto& out : run_all(router_call(form, {logits}))) {
    EXPECT_EQ(out[1].data, (std::vector<double>{2, 0}));
    EXPECT_GT(out[0].data[0], 0);
    EXPECT_EQ(out[0].data[1], 0);
  }
}

// Six experts fit no vector, 70 are no multiple of any.
TEST(Router, ChoosesAsAStableSortDoes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t experts : {6, 40, 64, 70}) {
    const std::int64_t rows = 12, top_k = 5;
    Values logits = random({rows, experts}, 2);
    const auto width = static_cast<std::size_t>(experts);
    for (std::size_t i = 0; i < logits.data.size(); ++i) {
      const std::size_t row = i / width;
      if (row % 4 != 0) logits.data[i] = std::round(2 * logits.data[i]);  // ties
      if (row % 4 == 2 && i % width % 7 != 1) logits.data[i] = -kInfinity;
      if (row % 4 == 3 && logits.data[i] == 0) logits.data[i] = i % 2 == 0 ? -0.0 : 0.0;
    }
    const OpCall call = router_call({.top_k = top_k, .normalizes = true}, {logits});
    for (const auto& out : run_all(call))
      for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
        std::vector<std::size_t> order(width);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return logits.data[t * width + a] > logits.data[t * width + b];
        });
        for (std::size_t j = 0; j < static_cast<std::size_t>(top_k); ++j)
          EXPECT_EQ(out[1].data[t * static_cast<std::size_t>(top_k) + j],
                    static_cast<double>(order[j]))
              << experts << " experts, row " << t << ", " << j;
      }
  }
}

TEST(Router, KeepsExpertsDistinctAndInRangeWhenLogitsAreNaN) {
  Values logits = random({7, 6}, 0);
  for (std::size_t i = 0; i < logits.data.size(); i += 4)
    logits.data[i] = std::numeric_limits<double>::quiet_NaN();
  const Values bias{tensor_type(kF32, {6}),
                    {0, 1, 2, 3, 4, std::numeric_limits<double>::quiet_NaN()}};
  const spec::RouterForm plain{.top_k = 3, .normalizes = true},
      groups{.top_k = 3,
             .score = spec::RouterScore::kSigmoid,
             .has_bias = true,
             .groups = 3,
             .group_top_k = 2,
             .group_score = spec::GroupScore::kTop2};
  for (const OpCall& call : {router_call(plain, {logits}), router_call(groups, {logits, bias})})
    for (const auto& out : run_all(call))
      for (std::size_t t = 0; t < 7; ++t)
        for (std::size_t j = 0; j < 3; ++j) {
          const double expert = out[1].data[3 * t + j];
          EXPECT_TRUE(expert >= 0 && expert < 6) << expert;
          for (std::size_t i = 0; i < j; ++i) EXPECT_NE(out[1].data[3 * t + i], expert);
        }
}

}  // namespace
}  // namespace anabatic::testing
