// SPDX-License-Identifier: Apache-2.0
// One step of training over a bound program: what the trainer, the profiler and the benchmark of
// whole steps run alike.
#pragma once
#include <cstdint>
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
// sample.
io::StepBatch random_step(const RunConfig& run, const model::ModelConfig& config,
                          std::uint64_t seed);

// What the losses of a step are means of: 1 / its labels, its tokens without padding and its
// documents; 0 for none.
void set_loss_scales(BoundProgram& program, std::int64_t unmasked_tokens, std::int64_t real_tokens,
                     std::int64_t num_documents);

// learning_rate, step (1 for the first) and the scales of losses.
void set_step_inputs(BoundProgram& program, const io::StepBatch& batch, std::int64_t step,
                     double learning_rate);

// After one micro-batch's forward. Losses add up: they carry their share of the step. `into` has
// loss, aux_loss and an optional z_loss.
template <class Losses>
void add_losses(const BoundProgram& program, Losses& into) {
  into.loss += program.scalar("loss");
  if (program.executor->has_output("aux_loss")) into.aux_loss += program.scalar("aux_loss");
  if (program.executor->has_output("z_loss"))
    into.z_loss = into.z_loss.value_or(0) + program.scalar("z_loss");
}

// Forward and backward of every micro-batch, then the update, unless it is part of the backward.
// Without labels: forwards only.
// Calls after_forward(micro_batch) after each forward, before_update() before parameters change.
template <class AfterForward, class BeforeUpdate = void (*)()>
void run_training_step(
    BoundProgram& program, const io::StepBatch& batch, std::int64_t step, double learning_rate,
    AfterForward&& after_forward, BeforeUpdate&& before_update = [] {}) {
  set_step_inputs(program, batch, step, learning_rate);
  const bool has_labels = batch.unmasked_tokens > 0;
  const bool has_update = program.executor->has_action(spec::Action::kUpdate);
  bool first = true;
  for (const io::MicroBatch& micro_batch : batch.micro_batches) {
    const bool last = has_labels && &micro_batch == &batch.micro_batches.back();
    program.set_batch(micro_batch);
    program.executor->run(spec::Action::kForward, first, last);
    after_forward(micro_batch);
    if (!has_labels) continue;
    if (last && !has_update) before_update();
    program.executor->run(spec::Action::kBackward, first, last);
    first = false;
  }
  if (!has_labels || !has_update) return;
  before_update();
  program.executor->run(spec::Action::kUpdate);
}

}  // namespace anabatic::train
