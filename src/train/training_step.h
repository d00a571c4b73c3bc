// SPDX-License-Identifier: Apache-2.0
// One step of training over a bound program: what the trainer, the profiler and the benchmark of
// whole steps run alike.
#pragma once
#include <cstdint>
#include <iterator>
#include <memory>

#include "io/data/loader.h"
#include "train/model_session.h"

namespace anabatic::train {

// The program of the session's run: its micro-batch, losses and optimizer.
std::unique_ptr<BoundProgram> bind_training(ModelSession& session);

// Model FLOPs of forward and backward over this micro-batch: attention counts unmasked pairs only,
// the head tokens with a label only, for nothing else is computed.
double micro_batch_flops(const model::ModelConfig& config, const io::MicroBatch& batch);

// A step of the run's size that needs no data: tokens drawn by (seed, place), one document a
// sample, or a pair.
io::StepBatch random_step(const RunConfig& run, const model::ModelConfig& config,
                          std::uint64_t seed);

// Counts of a whole step, on all ranks.
struct StepTotals {
  std::int64_t unmasked_tokens = 0, real_tokens = 0, num_documents = 0;
  double label_weight = 0;  // the number of labels where they have no weights
};
StepTotals totals_of(const io::StepBatch& batch);
StepTotals totals_of(const io::MicroBatch& batch);

// What the losses of a step are means of: 1 / the weight of its labels, its tokens without padding
// and its documents; 0 for none.
void set_loss_scales(BoundProgram& program, const StepTotals& totals);

// What a step has in addition to its samples.
struct StepNumbers {
  std::int64_t update = 1;  // which one of the run it makes: 1 for the first
  double learning_rate = 0;
  float loss_scale = 1;  // from which its backward begins
  // Of dropout: a step that is skipped counts here, too. The place of the first token of this
  // rank's part among those of the whole step.
  std::uint64_t seed = 0;
  std::int64_t step = 1, first_row = 0;
};

// These numbers, and the scales of losses.
void set_step_inputs(BoundProgram& program, const io::StepBatch& batch, const StepTotals& totals,
                     const StepNumbers& numbers);

// What dropout draws in this one of the micro-batches, all of which have as many tokens.
void set_dropout_draws(BoundProgram& program, const StepNumbers& numbers,
                       const io::MicroBatch& micro_batch, std::int64_t place);

// After one micro-batch's forward. Losses add up: they carry their share of the step. `into` has
// loss, aux_loss, and z_loss and mtp_loss, which are optional.
template <class Losses>
void add_losses(const BoundProgram& program, Losses& into) {
  into.loss += program.scalar("loss");
  if (program.executor->has_output("aux_loss")) into.aux_loss += program.scalar("aux_loss");
  if (program.executor->has_output("z_loss"))
    into.z_loss = into.z_loss.value_or(0) + program.scalar("z_loss");
  if (program.executor->has_output("mtp_loss"))
    into.mtp_loss = into.mtp_loss.value_or(0) + program.scalar("mtp_loss");
}

// Runs the schedule of a step, or of a rank's part of it: forward and backward of every
// micro-batch, then the update, unless it is part of the backward. Without labels on any rank:
// forwards only. Calls after_forward(micro_batch) after each forward, before_update() before
// parameters change.
template <class AfterForward, class BeforeUpdate = void (*)()>
void run_training_step(
    BoundProgram& program, const io::StepBatch& batch, const StepTotals& totals,
    const StepNumbers& numbers, AfterForward&& after_forward,
    BeforeUpdate&& before_update = [] {}) {
  set_step_inputs(program, batch, totals, numbers);
  if (totals.unmasked_tokens == 0) {
    for (const io::MicroBatch& micro_batch : batch.micro_batches) {
      program.set_batch(micro_batch);
      set_dropout_draws(program, numbers, micro_batch, &micro_batch - batch.micro_batches.data());
      program.run_alone(spec::Action::kForward);
      after_forward(micro_batch);
    }
    return;
  }
  for (const spec::StepEntry& entry : program.schedule(std::ssize(batch.micro_batches))) {
    const io::MicroBatch& micro_batch =
        batch.micro_batches[static_cast<std::size_t>(entry.micro_batch)];
    if (program.updates(entry)) before_update();
    if (entry.action == spec::Action::kForward) {
      program.set_batch(micro_batch);
      set_dropout_draws(program, numbers, micro_batch, entry.micro_batch);
    }
    program.executor->run(entry);
    if (entry.action == spec::Action::kForward) after_forward(micro_batch);
  }
}

}  // namespace anabatic::train
