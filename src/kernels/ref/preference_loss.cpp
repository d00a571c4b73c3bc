// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"
#include "spec/preference.h"

namespace anabatic::kernels::ref {
namespace {

using enum spec::PreferenceSum;

// log(1 + exp(x)) without overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

// A completion's tokens, and what they add up to.
struct Completion {
  double difference, log_probability, tokens;
};

struct PairLoss {
  double value = 0, slope = 0;  // by z
};

struct Settings {
  spec::PreferenceLoss loss;
  double beta, smoothing;
  bool takes_means;

  explicit Settings(const spec::Attributes& attributes)
      : loss(*spec::preference_loss_from_string(spec::get_string(attributes, "loss"))),
        beta(spec::get_double(attributes, "beta")),
        smoothing(spec::get_double_or(attributes, "label_smoothing", 0)),
        takes_means(loss == spec::PreferenceLoss::kIpo ||
                    spec::get_bool_or(attributes, "length_normalized", false)) {}

  PairLoss of(double z) const {
    switch (loss) {
      case spec::PreferenceLoss::kHinge:
        return {std::max(0.0, 1 - z), z < 1 ? -1.0 : 0.0};
      case spec::PreferenceLoss::kIpo: {
        const double excess = z / beta - 1 / (2 * beta);
        return {excess * excess, 2 * excess / beta};
      }
      case spec::PreferenceLoss::kSigmoid:
        break;
    }
    return {(1 - smoothing) * softplus(-z) + smoothing * softplus(z),
            smoothing * sigmoid(z) - (1 - smoothing) * sigmoid(-z)};
  }
};

}  // namespace

std::int64_t preference_loss_workspace_bytes(const spec::Problem& problem) {
  return problem.inputs[0].dim(0) * std::int64_t{sizeof(Completion)};
}

void preference_loss(const Arguments& args) {
  const TensorView &log_probabilities = args.inputs[0], &numbers = args.inputs[2];
  const Settings settings(*args.attributes);
  const double inverse_pairs = load(args.inputs[3], 0);
  const std::int64_t num_rows = rows(numbers);
  const std::span all(reinterpret_cast<Completion*>(args.workspace),
                      static_cast<std::size_t>(num_rows));
  std::fill(all.begin(), all.end(), Completion{});
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < num_rows; ++t) {
    const std::int64_t number = load_index(numbers, t);
    ANABATIC_REQUIRE(number >= -1 && number < num_rows,
                     "[preference_loss] expected completions in [-1, {}), got {}", num_rows,
                     number);
    if (number < 0) continue;
    Completion& completion = all[static_cast<std::size_t>(number)];
    const double of_row = load(log_probabilities, t);
    completion.difference += of_row - load(args.inputs[1], t);
    completion.log_probability += of_row;
    ++completion.tokens;
    count = std::max(count, number + 1);
  }
  std::array<double, spec::kNumPreferenceSums> sums{};
  double loss = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); i += 2) {
    ANABATIC_REQUIRE(
        i + 1 < static_cast<std::size_t>(count) && all[i].tokens > 0 && all[i + 1].tokens > 0,
        "[preference_loss] expected both completions of pair {} in the micro-batch, "
        "got one",
        i / 2);
    Completion &chosen = all[i], &rejected = all[i + 1];
    const double of_chosen = settings.takes_means ? chosen.tokens : 1,
                 of_rejected = settings.takes_means ? rejected.tokens : 1;
    const double z =
        settings.beta * (chosen.difference / of_chosen - rejected.difference / of_rejected);
    const PairLoss pair = settings.of(z);
    loss += pair.value;
    sums[kPairs] += 1;
    sums[kCorrect] += z > 0 ? 1 : 0;
    sums[kChosenReward] += settings.beta * chosen.difference / of_chosen;
    sums[kRejectedReward] += settings.beta * rejected.difference / of_rejected;
    sums[kChosenLogProbability] += chosen.log_probability / of_chosen;
    sums[kRejectedLogProbability] += rejected.log_probability / of_rejected;
    sums[kChosenTokens] += chosen.tokens;
    sums[kRejectedTokens] += rejected.tokens;
    // Also for a z that is no number.
    if (!(std::abs(z) <= sums[kLargestMargin])) sums[kLargestMargin] = std::abs(z);
    // From here on it holds what each of its tokens weighs.
    const double slope = inverse_pairs * settings.beta * pair.slope;
    chosen.difference = -slope / of_chosen;
    rejected.difference = slope / of_rejected;
  }
  store(args.outputs[0], 0, inverse_pairs * loss);
  for (std::int64_t t = 0; t < num_rows; ++t) {
    const std::int64_t number = load_index(numbers, t);
    store(args.outputs[1], t, number < 0 ? 0.0 : all[static_cast<std::size_t>(number)].difference);
  }
  for (std::size_t i = 0; i < sums.size(); ++i)
    store(args.outputs[2], static_cast<std::int64_t>(i), sums[i]);
}

}  // namespace anabatic::kernels::ref
