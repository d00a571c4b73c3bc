// SPDX-License-Identifier: Apache-2.0
#include "train/preference/first_reference.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "train/preference/preference_sums.h"
#include "train/ranks/ranks.h"
#include "train/training_step.h"

namespace anabatic::train {

FirstReference::FirstReference(const RunConfig& run, const RunStart& start, io::Dataset& dataset,
                               io::Dataset* validation, const runtime::RankContext& rank, Say say)
    : run_(run),
      start_(start),
      dataset_(dataset),
      validation_(validation),
      rank_(rank),
      say_(std::move(say)) {}

bool FirstReference::has_steps() const {
  return !start_.checkpoint || start_.step < run_.train.steps;
}

bool FirstReference::is_read() const {
  return has_reference(run_) && (has_steps() || validation_ != nullptr);
}

bool FirstReference::is_start() const { return is_read() && run_.dpo.reference == "base"; }

std::string FirstReference::take_other(const model::ModelConfig& config) {
  if (!is_read() || run_.dpo.reference == "base") return "";
  OtherModel other(run_, config);
  take(other.reference());
  return fmt::format("reference {}, ", other.weights());
}

void FirstReference::take(Reference& reference) {
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t num_computed = reference.attach(dataset_);
  if (validation_ != nullptr) num_computed += reference.attach(*validation_);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  say_(num_computed > 0
           ? fmt::format("reference: log-probabilities of {} tokens of data in {:.1f} s, kept next "
                         "to them",
                         num_computed, seconds)
           : "reference: the log-probabilities next to the data are of the same weights and "
             "settings");
  if (!has_steps()) return;
  io::LoaderOptions options = loader_options(run_, rank_);
  options.prefetch = false;
  io::Loader first(dataset_, options);
  for (const io::MicroBatch& batch : first.load_step(start_.step).micro_batches)
    own_.push_back(reference.log_probabilities(batch));
}

void FirstReference::check(BoundProgram& program, const io::StepBatch& batch) {
  if (own_.empty()) return;
  const bool is_policy = is_start() && start_.step == 0 && run_.lora.from.empty();
  double largest = 0;
  PreferenceSums sums;
  set_loss_scales(program, totals_of(batch));
  for (std::size_t i = 0; i < own_.size(); ++i) {
    io::MicroBatch own = batch.micro_batches[i];
    largest = std::max(largest, require_stored(own, own_[i], packing_bound(run_)));
    if (!is_policy) continue;
    own.reference = std::move(own_[i]);
    program.set_batch(own);
    program.run_alone(spec::Action::kForward);
    sums.add(program);
  }
  own_.clear();
  if (!(sums.largest_margin() <= kMostMargin))
    throw InternalError(
        fmt::format("the model that training starts from is not the reference: a pair of the "
                    "first step has a margin |z| of {:.3g}; expected at most {:.3g}",
                    sums.largest_margin(), kMostMargin));
  say_(fmt::format(
      "reference: stored log-probabilities differ by at most {:.2g} a token from those "
      "of the first step{}",
      largest,
      is_policy ? fmt::format(", and no margin of it is above {:.2g}", sums.largest_margin())
                : ""));
}

}  // namespace anabatic::train
