// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/rank_step.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/checksums.h"
#include "train/nonfinite.h"
#include "train/objective/run_model.h"
#include "train/ranks/agreement.h"
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
      sums_(rank, std::max(kMostLosses, expert_counts_.values().size())),
      watch_(rank) {
  if (num_ranks() == 1) return;
  plan_hash_ = hash_of(program.compiled);
  has_parts_ = std::ranges::any_of(
      program.compiled.program.states,
      [](const runtime::StateSlot& slot) { return !slot.part.rows.is_whole(); });
}

bool RankStep::begin(std::int64_t step, bool goes_on) {
  for (;;) {
    const Verdict verdict =
        sums_.begin(plan_hash_, step, goes_on ? Verdict::kSteps : Verdict::kEnds);
    if (verdict == Verdict::kReadsPeers) {
      answer_reads(sums_, session_.store());
    } else if (verdict == Verdict::kValidates) {
      ANABATIC_CHECK(evaluator_ != nullptr, "[ranks] no data to validate with");
      session_.refresh_stale();
      (void)evaluator_->run(&sums_);
    } else {
      return verdict == Verdict::kSteps;
    }
  }
}

Evaluation RankStep::validate(std::int64_t step, Evaluator& evaluator) {
  (void)sums_.begin(plan_hash_, step, Verdict::kValidates);
  session_.refresh_stale();
  return evaluator.run(&sums_);
}

std::unique_ptr<PeerReads> RankStep::read_peers(std::int64_t step) {
  if (!has_parts_) return nullptr;
  (void)sums_.begin(plan_hash_, step, Verdict::kReadsPeers);
  return std::make_unique<PeerReads>(sums_, session_.store());
}

void RankStep::compare_states(std::int64_t first_step) {
  if (num_ranks() == 1) return;
  (void)sums_.begin(plan_hash_, first_step - 1, Verdict::kSteps);
  std::string differing;
  for (const runtime::StateSlot& slot : program_.compiled.program.states) {
    const spec::StateKind kind = slot.part.kind();
    const bool is_saved =
        kind == spec::StateKind::kParameter || kind == spec::StateKind::kOptimizer;
    if (!is_saved || !slot.part.rows.is_whole()) continue;
    const TensorView state = session_.store().find(slot.name);
    const std::span bytes{state.data, static_cast<std::size_t>(state.type->num_bytes())};
    io::Checksum sum;
    sum.add(bytes);
    if (!sums_.is_same(sum.value()))
      differing += fmt::format("{}{}", differing.empty() ? "" : ", ", text(slot.name));
  }
  ANABATIC_REQUIRE(
      differing.empty(),
      "[ranks] a rank expected the first rank's values of each state, and found others "
      "in {}: do all machines read the same files?",
      differing);
}

void RankStep::run(const io::StepBatch& batch, StepMetrics& metrics, const StepHooks& hooks) {
  watch_.begin();
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
  metrics.comm = watch_.end();
}

}  // namespace anabatic::train
