// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.h"

#include <algorithm>

#include "base/philox.h"
#include "passes/apply_optimizer.h"
#include "passes/differentiate.h"
#include "spec/dropout.h"
#include "train/attention/key_blocks.h"
#include "train/objective/mtp_batch.h"
#include "train/run_plan.h"

namespace anabatic::train {
namespace {

constexpr std::int32_t kIgnored = -100;

// A document; a completion without a prompt where it is of pairs.
void append_random_sample(io::MicroBatch& batch, std::int64_t length, std::int64_t vocab_size,
                          std::uint64_t seed, bool is_of_pairs) {
  const auto begin = static_cast<std::int64_t>(batch.tokens.size());
  const auto token = [&](std::int64_t i) {
    return static_cast<std::int32_t>(random_below(seed, 0, static_cast<std::uint64_t>(i),
                                                  static_cast<std::uint64_t>(vocab_size)));
  };
  for (std::int64_t i = begin; i < begin + length; ++i) {
    batch.tokens.push_back(token(i));
    batch.labels.push_back(i + 1 < begin + length ? token(i + 1) : kIgnored);
    batch.positions.push_back(static_cast<std::int32_t>(i - begin));
    batch.key_begin.push_back(static_cast<std::int32_t>(begin));
    batch.key_end.push_back(static_cast<std::int32_t>(i + 1));
    batch.documents.push_back(static_cast<std::int32_t>(begin));
    if (!is_of_pairs) continue;
    batch.completions.push_back(
        i + 1 < begin + length ? static_cast<std::int32_t>(batch.num_documents) : -1);
    batch.reference.push_back(0);
  }
  batch.unmasked_tokens += length - 1;
  batch.real_tokens += length;
  ++batch.num_documents;
}

}  // namespace

std::unique_ptr<BoundProgram> bind_training(ModelSession& session) {
  return session.bind(training_request(session.run(), session.config()));
}

double micro_batch_flops(const model::ModelConfig& config, const io::MicroBatch& batch) {
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  const auto ignored = static_cast<double>(tokens - batch.unmasked_tokens);
  const auto pairs = [&](std::int64_t window) { return unmasked_pairs(config, batch, window); };
  return model::training_flops(config, tokens, pairs) -
         model::training_flops_a_weight(config) * ignored *
             static_cast<double>(config.spec.vocab_size * config.spec.hidden_size);
}

io::StepBatch random_step(const RunConfig& run, const model::ModelConfig& config,
                          std::uint64_t seed) {
  io::StepBatch step;
  for (std::int64_t i = 0; i < run.train.gradient_accumulation_steps; ++i) {
    io::MicroBatch& batch = step.micro_batches.emplace_back();
    const std::int64_t num_documents = trains_on_pairs(run) ? 2 : 1;
    for (std::int64_t sample = 0; sample < run.train.micro_batch_size; ++sample)
      for (std::int64_t left = num_documents, rest = run.data.sequence_length; left > 0; --left) {
        const std::int64_t length = rest / left;
        append_random_sample(batch, length, config.spec.vocab_size,
                             seed + static_cast<std::uint64_t>(i), trains_on_pairs(run));
        rest -= length;
      }
    step.count(batch);
  }
  return step;
}

StepTotals totals_of(const io::StepBatch& batch) {
  return {batch.unmasked_tokens, batch.real_tokens, batch.num_documents, batch.label_weight};
}

StepTotals totals_of(const io::MicroBatch& batch) {
  return {batch.unmasked_tokens, batch.real_tokens, batch.num_documents, batch.label_weight()};
}

void set_loss_scales(BoundProgram& program, const StepTotals& totals) {
  const auto set_inverse = [&](const char* name, double of) {
    program.set_scalar(name, of > 0 ? static_cast<float>(1.0 / of) : 0.0f);
  };
  set_inverse("inverse_tokens", totals.label_weight);
  set_inverse("inverse_pairs", totals.label_weight);
  set_inverse("inverse_real_tokens", static_cast<double>(totals.real_tokens));
  set_inverse("inverse_documents", static_cast<double>(totals.num_documents));
}

void set_step_inputs(BoundProgram& program, const io::StepBatch& batch, const StepTotals& totals,
                     const StepNumbers& numbers) {
  program.set_scalar("learning_rate", static_cast<float>(numbers.learning_rate));
  program.set_scalar("step", static_cast<std::int32_t>(numbers.update));
  program.set_scalar(passes::kLossScale, numbers.loss_scale);
  program.set_scalar(passes::kInverseLossScale, 1.0f / numbers.loss_scale);
  set_loss_scales(program, totals);
  set_mtp_scales(program, batch.micro_batches);
}

void set_dropout_draws(BoundProgram& program, const StepNumbers& numbers,
                       const io::MicroBatch& micro_batch, std::int64_t place) {
  const std::int64_t first_row = numbers.first_row + place * std::ssize(micro_batch.tokens);
  program.set(spec::kDropoutDraws, spec::dropout_draws(numbers.seed, numbers.step, first_row));
}

}  // namespace anabatic::train
