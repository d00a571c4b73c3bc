// SPDX-License-Identifier: Apache-2.0
#include "train/config/dpo_keys.h"

#include "train/config/config_key.h"

namespace anabatic::train {

void add_dpo_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(number("dpo.beta",
                        "What the log-probabilities of a pair, less those of the reference, are "
                        "scaled by. Smaller lets the model move further from the reference.",
                        1e-6, 1e6, AT(dpo.beta)));
  keys.push_back(number("dpo.label_smoothing",
                        "Share of pairs whose completions are taken to be in the wrong order. Of "
                        "the loss sigmoid.",
                        0, 0.5, AT(dpo.label_smoothing)));
  keys.push_back(choice("dpo.loss",
                        "Loss of a pair by its margin z. sigmoid is -log sigmoid(z); hinge is "
                        "max(0, 1 - z); ipo is the square of the margin's distance from 1/2 beta.",
                        {"sigmoid", "hinge", "ipo"}, AT(dpo.loss)));
  keys.push_back(boolean("dpo.length_normalized",
                         "Take means over the tokens of a completion rather than sums. ipo does.",
                         AT(dpo.length_normalized)));
  keys.push_back(string("dpo.reference",
                        "The model that log-probabilities are compared with. base is the one that "
                        "training starts from, without an adapter; none compares with nothing; "
                        "else a model directory with the same vocabulary.",
                        AT(dpo.reference)));
}

void add_dpo_problems(const RunConfig& config, std::vector<std::string>& problems) {
  if (!trains_on_pairs(config)) return;
  const auto expect = [&](bool holds, const char* key, std::string_view expected, const auto& got) {
    if (!holds)
      problems.push_back(
          fmt::format("{}: expected {} with train.objective: dpo, got {}", key, expected, got));
  };
  const RunConfig::Dpo& dpo = config.dpo;
  expect(dpo.loss == "sigmoid" || dpo.label_smoothing == 0, "dpo.label_smoothing",
         "0 but for dpo.loss sigmoid", dpo.label_smoothing);
  expect(!dpo.reference.empty(), "dpo.reference", "base, none or a model directory", "nothing");
  const std::int64_t most = config.data.sequence_length / 2;
  expect(config.data.max_length <= most, "data.max_length",
         fmt::format("at most {}, as a sample holds both completions of a pair,", most),
         config.data.max_length);
  expect(most > 0, "data.sequence_length", "at least 2", config.data.sequence_length);
  expect(packing_of(config) == "best_fit", "data.packing", "best_fit, which keeps pairs whole,",
         config.data.packing);
  const RunConfig::Parallel& parallel = config.parallel;
  expect(parallel.local_ranks == 1 && parallel.world <= 1, "parallel.local_ranks",
         "1: ranks do not share pairs yet", std::max(parallel.local_ranks, parallel.world));
  expect(config.train.mtp_loss_coef <= 0, "train.mtp_loss_coef",
         "auto or 0: layers of multi-token prediction have no loss of pairs",
         config.train.mtp_loss_coef);
}

}  // namespace anabatic::train
