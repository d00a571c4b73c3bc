// SPDX-License-Identifier: Apache-2.0
// The update on parameters of a host against the rule in double.
#include "anabatic/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "anabatic/error.h"
#include "support/random_data.h"
#include "support/tolerance.h"

namespace anabatic {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Parameter {
  std::int64_t rows, columns;
  std::vector<float> value, gradient, first, second;

  Parameter(std::int64_t the_rows, std::int64_t the_columns, std::uint64_t seed)
      : rows(the_rows), columns(the_columns) {
    const TensorType type{.dtype = DType::kFloat32, .shape = {rows, columns}};
    std::uint64_t stream = 0;
    for (std::vector<float>* values : {&value, &gradient, &first, &second}) {
      const auto drawn =
          testing::random_values(type, testing::Regime::kBounded, seed, ++stream).data;
      values->assign(drawn.begin(), drawn.end());
    }
    for (float& moment : second) moment = std::abs(moment);
  }

  AdamWParameter view() {
    return {.value = value.data(),
            .gradient = gradient.data(),
            .first_moment = first.data(),
            .second_moment = second.data(),
            .rows = rows,
            .columns = columns};
  }
};

std::vector<Parameter> parameters() {
  std::vector<Parameter> made;
  for (const auto& [rows, columns] :
       {std::pair{0, 5}, {1, 1}, {37, 11}, {3, 700}, {1, 65}, {520, 40}, {7, 3}})
    made.emplace_back(rows, columns, made.size() + 1);
  return made;
}

std::vector<AdamWParameter> views(std::vector<Parameter>& of) {
  std::vector<AdamWParameter> all;
  for (Parameter& parameter : of) all.push_back(parameter.view());
  return all;
}

// `terms`: how large what was added up is, where it may cancel.
void expect_agreement(double got, double want, double terms) {
  EXPECT_LE(std::abs(got - want),
            testing::agreement_tolerance(std::abs(want) + terms, DType::kFloat32))
      << got << " " << want;
}

constexpr AdamWNumbers kNumbers{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};

TEST(AdamW, UpdatesAsTheRuleSays) {
  constexpr double kRate = 0.01, kClip = 0.5;
  constexpr std::int64_t kStep = 3;
  const std::vector<Parameter> before = parameters();
  std::vector<Parameter> after = parameters();
  AdamW adamw(2);
  double squares = 0;
  for (const Parameter& parameter : before)
    for (const double g : parameter.gradient) squares += g * g;
  expect_agreement(adamw.sum_squares(views(after)), squares, 0);
  adamw.update(views(after), kNumbers, kRate, kStep, kClip);
  for (std::size_t p = 0; p < before.size(); ++p)
    for (std::size_t i = 0; i < before[p].value.size(); ++i) {
      const double g = kClip * before[p].gradient[i];
      const double first = kNumbers.beta1 * before[p].first[i] + (1 - kNumbers.beta1) * g;
      const double second = kNumbers.beta2 * before[p].second[i] + (1 - kNumbers.beta2) * g * g;
      const double mean = first / (1 - std::pow(kNumbers.beta1, kStep));
      const double root = std::sqrt(second / (1 - std::pow(kNumbers.beta2, kStep)));
      const double moved = kRate * mean / (root + kNumbers.epsilon);
      const double value = before[p].value[i] * (1 - kRate * kNumbers.weight_decay) - moved;
      expect_agreement(after[p].first[i], first, std::abs(g));
      expect_agreement(after[p].second[i], second, g * g);
      expect_agreement(after[p].value[i], value, std::abs(before[p].value[i]) + std::abs(moved));
    }
}

TEST(AdamW, HasEqualBitsOnAnyNumberOfThreads) {
  std::vector<Parameter> one = parameters(), three = parameters();
  AdamW(1).update(views(one), kNumbers, 0.01, 1);
  AdamW(3).update(views(three), kNumbers, 0.01, 1);
  for (std::size_t p = 0; p < one.size(); ++p) EXPECT_EQ(one[p].value, three[p].value) << p;
}

TEST(AdamW, ChangesNothingByAFactorThatIsNotFinite) {
  const std::vector<Parameter> before = parameters();
  std::vector<Parameter> after = parameters();
  AdamW adamw;
  adamw.update(views(after), kNumbers, 0.01, 1, std::numeric_limits<double>::quiet_NaN());
  for (std::size_t p = 0; p < before.size(); ++p) EXPECT_EQ(after[p].value, before[p].value) << p;
}

TEST(AdamW, NamesANumberThatIsOutOfRange) {
  AdamW adamw;
  const auto refuses = [&](AdamWNumbers numbers, double rate, std::int64_t step,
                           const std::string& text) {
    EXPECT_THAT([&] { adamw.update({}, numbers, rate, step); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refuses({.beta1 = 1}, 0.1, 1, "beta1: expected a number in [0, 1), got 1");
  refuses({.weight_decay = -1}, 0.1, 1, "weight_decay: expected a number of at least 0, got -1");
  refuses({}, std::numeric_limits<double>::infinity(), 1, "expected a learning rate");
  refuses({}, 0.1, 0, "expected a step of at least 1, got 0");
  refuses({.moments = LayerDtype::kInt32}, 0.1, 1, "expected moments in f32 or bf16");
}

}  // namespace
}  // namespace anabatic
