// SPDX-License-Identifier: Apache-2.0
#include "train/config/dropout_keys.h"

#include "spec/dropout.h"
#include "train/config/config_key.h"

namespace anabatic::train {
namespace {

constexpr double kLeastRate = 1.0 / spec::kDropoutSteps, kMostRate = 1 - kLeastRate;

template <class At>
ConfigKey rate(std::string name, std::string help, At at) {
  ConfigKey key = number(std::move(name), std::move(help), 0, 1, at);
  key.set = [=](RunConfig& config, Values values) {
    const double value = parse_number<double>(only(values), "a number");
    const std::string problem = problem_of_rate(value);
    ANABATIC_REQUIRE(problem.empty(), "{}", problem);
    at(config) = value;
  };
  key.allowed = "0 to below 1";
  return or_word(std::move(key), "auto", RunConfig::kUsualDropout, at);
}

}  // namespace

std::string problem_of_rate(double rate) {
  if (rate == 0 || (rate >= kLeastRate && rate <= kMostRate)) return "";
  return fmt::format("expected 0, or a rate of {:.6f} to {:.6f}, got {}", kLeastRate, kMostRate,
                     rate);
}

void add_dropout_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(rate("dropout.residual",
                      "Share of what attention and MLP add to the hidden state that training sets "
                      "to 0. auto is that of config.json (resid_pdrop), and 0 with "
                      "train.objective dpo.",
                      AT(dropout.residual)));
  keys.push_back(rate("dropout.embedding",
                      "The same of the embedding of tokens and positions. auto is that of "
                      "config.json (embd_pdrop), and 0 with train.objective dpo.",
                      AT(dropout.embedding)));
  keys.push_back(
      rate("dropout.attention",
           "The same of the probabilities that attention multiplies values with. auto is "
           "that of config.json (attention_dropout, attn_pdrop), and 0 with "
           "train.objective dpo.",
           AT(dropout.attention)));
}

ConfigKey adapter_dropout_key() {
  return rate("lora.dropout",
              "Share of what adapters read that training sets to 0. auto is that of lora.from, "
              "else 0.",
              AT(lora.dropout));
}

void add_dropout_problems(const RunConfig& config, std::vector<std::string>& problems) {
  if (!trains_on_pairs(config)) return;
  const auto expect_none = [&](const char* key, double rate) {
    if (rate > 0)
      problems.push_back(
          fmt::format("{}: expected 0 with train.objective: dpo, got {}: policy and reference are "
                      "compared without dropout",
                      key, rate));
  };
  expect_none("dropout.residual", config.dropout.residual);
  expect_none("dropout.embedding", config.dropout.embedding);
  expect_none("dropout.attention", config.dropout.attention);
  expect_none("lora.dropout", config.lora.dropout);
}

}  // namespace anabatic::train
