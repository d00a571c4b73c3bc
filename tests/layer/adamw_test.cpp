// SPDX-License-Identifier: Apache-2.0
// The update on parameters of a host against the rule in double.
#include "anabatic/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>
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

constexpr double kRate = 0.01, kClip = 0.5;
constexpr std::int64_t kStep = 3;

// An element after the update, by the rule in double.
struct Updated {
  double value, first, second, moved;

  Updated(const Parameter& before, std::size_t i) {
    const double g = kClip * before.gradient[i];
    first = kNumbers.beta1 * before.first[i] + (1 - kNumbers.beta1) * g;
    second = kNumbers.beta2 * before.second[i] + (1 - kNumbers.beta2) * g * g;
    const double mean = first / (1 - std::pow(kNumbers.beta1, kStep));
    const double root = std::sqrt(second / (1 - std::pow(kNumbers.beta2, kStep)));
    moved = kRate * mean / (root + kNumbers.epsilon);
    value = before.value[i] * (1 - kRate * kNumbers.weight_decay) - moved;
  }
};

void expect_value(double got, const Updated& want, const Parameter& before, std::size_t i) {
  expect_agreement(got, want.value, std::abs(before.value[i]) + std::abs(want.moved));
}

TEST(AdamW, UpdatesAsTheRuleSays) {
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
      const Updated want(before[p], i);
      expect_agreement(after[p].first[i], want.first, std::abs(g));
      expect_agreement(after[p].second[i], want.second, g * g);
      expect_value(after[p].value[i], want, before[p], i);
    }
}

// Moments in 8 bits and what they stand for.
struct QuantizedMoments {
  std::vector<std::byte> first, second;

  explicit QuantizedMoments(Parameter& of) {
    for (const auto& [moment, which, values] : {std::tuple{&first, AdamWMoment::kFirst, &of.first},
                                                {&second, AdamWMoment::kSecond, &of.second}}) {
      moment->resize(
          static_cast<std::size_t>(adamw_moment_bytes(AdamWMoments::kInt8, of.rows, of.columns)));
      encode_moment(which, values->data(), moment->data(), of.rows, of.columns);
    }
    decode(of);
  }
  void decode(Parameter& to) const {
    decode_moment(AdamWMoment::kFirst, first.data(), to.first.data(), to.rows, to.columns);
    decode_moment(AdamWMoment::kSecond, second.data(), to.second.data(), to.rows, to.columns);
  }
};

// The largest magnitude of the block of an element.
double scale_of(const Parameter& of, const std::vector<float>& values, std::int64_t i) {
  constexpr std::int64_t kSide = 16;
  const std::int64_t row = i / of.columns / kSide * kSide, column = i % of.columns / kSide * kSide;
  float largest = 0;
  for (std::int64_t r = row; r < std::min(of.rows, row + kSide); ++r)
    for (std::int64_t c = column; c < std::min(of.columns, column + kSide); ++c)
      largest = std::max(largest, std::abs(values[static_cast<std::size_t>(r * of.columns + c)]));
  return largest;
}

TEST(AdamW, KeepsMomentsInEightBits) {
  for (Parameter parameter : parameters()) {
    const Parameter given = parameter;
    QuantizedMoments moments(parameter);
    const auto expect_near = [&](const std::vector<float>& got, const std::vector<float>& want,
                                 bool is_signed, double scale_error) {
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double scale = scale_of(parameter, want, static_cast<std::int64_t>(i));
        EXPECT_LE(std::abs(got[i] - want[i]),
                  testing::dynamic_map_tolerance(is_signed, want[i], scale) + scale_error * scale)
            << i;
      }
    };
    expect_near(parameter.first, given.first, true, 0);
    expect_near(parameter.second, given.second, false, 0);
    const Parameter before = parameter;
    AdamWParameter view = parameter.view();
    view.first_moment = moments.first.data();
    view.second_moment = moments.second.data();
    AdamWNumbers numbers = kNumbers;
    numbers.moments = AdamWMoments::kInt8;
    AdamW(2).update(std::span(&view, 1), numbers, kRate, kStep, kClip);
    moments.decode(parameter);
    std::vector<float> first, second;
    for (std::size_t i = 0; i < before.value.size(); ++i) {
      const Updated want(before, i);
      expect_value(parameter.value[i], want, before, i);
      first.push_back(static_cast<float>(want.first));
      second.push_back(static_cast<float>(want.second));
    }
    const double rounding = testing::agreement_tolerance(1, DType::kFloat32);
    expect_near(parameter.first, first, true, rounding);
    expect_near(parameter.second, second, false, rounding);
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
}

}  // namespace
}  // namespace anabatic
