// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/rank_step.h"

#include <array>

#include "train/nonfinite.h"
#include "train/objective/run_model.h"
#include "train/ranks/local_ranks.h"
#include "train/router_bias.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

constexpr std::size_t kMostLosses = 5;

}  // namespace

RankStep::RankStep(const RunConfig& run, ModelSession& session, BoundProgram& program,
                   const runtime::RankContext& rank)
    : run_(run),
      session_(session),
      program_(program),
      expert_counts_(program),
      sums_(rank, std::max(kMostLosses, expert_counts_.values().size())) {
  if (num_ranks() > 1) plan_hash_ = hash_of(program.compiled);
}

bool RankStep::begin(std::int64_t step, bool goes_on) {
  return sums_.begin(plan_hash_, step, goes_on);
}

void RankStep::share_states(std::int64_t first_step) {
  if (num_ranks() == 1) return;
  (void)sums_.begin(plan_hash_, first_step - 1, true);
  for (const runtime::StateSlot& slot : program_.compiled.program.states) {
    const TensorView state = session_.store().find(slot.name);
    sums_.broadcast({state.data, static_cast<std::size_t>(state.type->num_bytes())});
  }
}

void RankStep::run(const io::StepBatch& batch, StepMetrics& metrics, const StepHooks& hooks) {
  const StepTotals totals = sums_.totals(batch);
  const bool has_labels = totals.unmasked_tokens > 0;
  metrics.tokens = totals.unmasked_tokens;
  expert_counts_.clear();
  flops_ = 0;
  run_training_step(
      program_, batch, totals, metrics.step, metrics.learning_rate,
      [&](const io::MicroBatch& micro_batch) {
        add_losses(program_, metrics);
        expert_counts_.add(program_);
        require_finite_loss(program_, metrics.step, metrics.loss);
        if (has_labels) flops_ += micro_batch_flops(session_.config(), micro_batch);
      },
      [&] {
        if (hooks.before_update) hooks.before_update();
      });
  if (has_labels) {
    metrics.grad_norm = program_.scalar("grad_norm");
    if (hooks.after_norm) hooks.after_norm();
    require_finite_gradients(program_, metrics.step, metrics.grad_norm);
    if (hooks.before_update) hooks.before_update();
  }
  std::array<double, kMostLosses> losses{metrics.loss, metrics.aux_loss, metrics.z_loss.value_or(0),
                                         metrics.mtp_loss.value_or(0), flops_};
  sums_.sum(std::span<double>(losses));
  sums_.sum(expert_counts_.values());
  metrics.loss = losses[0];
  metrics.aux_loss = losses[1];
  if (metrics.z_loss) metrics.z_loss = losses[2];
  if (metrics.mtp_loss) metrics.mtp_loss = losses[3];
  flops_ = losses[4];
  if (has_labels)
    update_router_biases(session_.store(), expert_counts_,
                         router_bias_rate_of(run_, session_.config()));
}

}  // namespace anabatic::train
