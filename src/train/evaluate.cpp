// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "train/config/precision_keys.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/preference/preference_sums.h"
#include "train/run_plan.h"
#include "train/training_step.h"

namespace anabatic::train {

Evaluator::Evaluator(ModelSession& session, const io::Dataset& dataset)
    : dataset_(dataset), micro_batch_size_(session.run().train.micro_batch_size) {
  program_ = session.bind(evaluation_request(session.run()));
  expert_counts_ = ExpertCounts(*program_);
}

Evaluation Evaluator::run(StepSums* sums, std::int64_t most_samples) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(micro_batch_size_));
  Evaluation result;
  double sum = 0, weight = 0;
  expert_counts_.clear();
  PreferenceSums of_pairs;
  const std::int64_t num_ranks = sums == nullptr ? 1 : sums->num_ranks(),
                     rank = sums == nullptr ? 0 : sums->rank();
  // Where data run out, ranks have micro-batches of padding.
  const std::int64_t num_samples = std::min(dataset_.num_samples(), most_samples);
  for (std::int64_t round = 0; round * num_ranks * micro_batch_size_ < num_samples; ++round) {
    const std::int64_t first = (round * num_ranks + rank) * micro_batch_size_;
    for (std::int64_t i = 0; i < micro_batch_size_; ++i)
      samples[static_cast<std::size_t>(i)] = first + i < num_samples ? first + i : -1;
    io::fill_micro_batch(dataset_, samples, batch_, scratch_);
    const double loss = summed_loss(*program_, batch_);
    sums == nullptr ? void(sum += loss) : sums->add_in_order(sum, loss);
    expert_counts_.add(*program_);
    of_pairs.add(*program_);
    result.tokens += batch_.unmasked_tokens;
    weight += batch_.label_weight();
  }
  if (sums != nullptr) {
    const double own = weight;
    sums->sum(std::span(&own, 1), std::span(&weight, 1));
    sums->sum(std::span(&result.tokens, 1));
    sums->sum(expert_counts_.values());
  }
  ANABATIC_REQUIRE(result.tokens > 0, "[evaluate] expected data with at least one label, got none");
  result.loss = sum / weight;
  result.preference = of_pairs.means();
  result.perplexity = std::exp(result.loss);
  result.experts = expert_counts_.balance();
  return result;
}

void Evaluator::set_updates(std::int64_t updates) {
  program_->set_scalar("step", static_cast<std::int32_t>(updates));
}

double summed_loss(BoundProgram& program, const io::MicroBatch& batch) {
  program.set_batch(batch);
  set_loss_scales(program, totals_of(batch));
  program.run_alone(spec::Action::kForward);
  return program.scalar("loss") * batch.label_weight();
}

namespace {

void require_evaluation_keys(const RunConfig& run) {
  ANABATIC_REQUIRE(!run.model.path.empty() && !run.data.validation.empty(),
                   "[evaluate] expected model.path and data.validation, got '{}' and {} files",
                   run.model.path, run.data.validation.size());
}

}  // namespace

Evaluation evaluate(const RunConfig& run) {
  require_evaluation_keys(run);
  ModelSession session(with_inference_precision(without_mtp(run)), false);
  return evaluate(session);
}

Evaluation evaluate(ModelSession& session) {
  const RunConfig& run = session.run();
  require_evaluation_keys(run);
  if (trains_on_pairs(run))
    throw Unsupported(
        "[evaluate] train.objective: expected lm or sft, got dpo: `train` validates on pairs");
  check_sample_length(run, session.config());
  warn_of_special_tokens(run, session.config());
  const io::Dataset dataset = open_dataset(run.data.validation, run, session.config());
  Evaluator evaluator(session, dataset);
  if (!session.has_parameters()) session.load_parameters();
  session.refresh_derived();
  return evaluator.run();
}

}  // namespace anabatic::train
