// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/rank_step.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "base/error.h"
#include "io/checksums.h"
#include "train/loss_scale/skipped_step.h"
#include "train/nonfinite.h"
#include "train/objective/run_model.h"
#include "train/preference/preference_sums.h"
#include "train/ranks/agreement.h"
#include "train/ranks/shared_save.h"
#include "train/router_bias.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

// What a leaf adds up.
enum Sum : std::uint8_t { kLoss, kAuxLoss, kZLoss, kMtpLoss, kFlops, kNumSums };
using Sums = std::array<double, kNumSums>;

struct Losses {
  double loss = 0, aux_loss = 0;
  std::optional<double> z_loss{}, mtp_loss{};
};

}  // namespace

RankStep::RankStep(const RunConfig& run, ModelSession& session, BoundProgram& program,
                   LossScaler& scaler, const runtime::RankContext& rank)
    : run_(run),
      session_(session),
      program_(program),
      scaler_(scaler),
      data_rank_(rank.rank()),
      expert_counts_(program),
      expert_room_(program),
      leaves_(kNumSums * static_cast<std::size_t>(program.compiled.program.leaves)),
      sums_(rank, std::max({leaves_.size(), expert_counts_.values().size(), std::size_t{4}})),
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
    if (verdict == Verdict::kSaves) {
      join_save(sums_, session_);
    } else if (verdict == Verdict::kValidates) {
      ANABATIC_CHECK(evaluator_ != nullptr, "[ranks] no data to validate with");
      session_.refresh_stale();
      evaluator_->set_updates(step - 1);
      (void)evaluator_->run(&sums_);
    } else {
      return verdict == Verdict::kSteps;
    }
  }
}

Evaluation RankStep::validate(std::int64_t step, Evaluator& evaluator) {
  (void)sums_.begin(plan_hash_, step, Verdict::kValidates);
  session_.refresh_stale();
  evaluator.set_updates(step - 1);
  return evaluator.run(&sums_);
}

std::filesystem::path RankStep::save(std::int64_t step, const CheckpointProgress& progress,
                                     const Retention& retention) {
  SharedWrite write_shared;
  if (num_ranks() > 1)
    write_shared = [&](const std::filesystem::path& directory, const BoxMap& boxes) {
      (void)sums_.begin(plan_hash_, step, Verdict::kSaves);
      return lead_save(sums_, session_, directory, boxes);
    };
  return save_checkpoint(run_.train.output, session_, progress, retention, write_shared);
}

void RankStep::compare_states(std::int64_t first_step) {
  if (num_ranks() == 1) return;
  (void)sums_.begin(plan_hash_, first_step - 1, Verdict::kSteps);
  std::vector<Name> names;
  std::vector<std::uint64_t> own;
  for (const runtime::StateSlot& slot : program_.compiled.program.states) {
    if (!spec::is_saved(slot.part.kind()) || !slot.part.rows.is_whole()) continue;
    const TensorView state = session_.store().find(slot.name);
    const std::span bytes{state.data, static_cast<std::size_t>(state.type->num_bytes())};
    io::Checksum sum;
    sum.add(bytes);
    names.push_back(slot.name);
    own.push_back(sum.value());
  }
  std::vector<std::uint64_t> of_first = own;
  sums_.broadcast(std::as_writable_bytes(std::span(of_first)));
  std::string differing;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (own[i] != of_first[i])
      differing += fmt::format("{}{}", differing.empty() ? "" : ", ", text(names[i]));
  ANABATIC_REQUIRE(
      differing.empty(),
      "[ranks] a rank expected the first rank's values of each state, and found others "
      "in {}: do all machines read the same files?",
      differing);
}

// Ranks take equal parts of a step, in their order.
std::int64_t RankStep::first_row_of(const io::StepBatch& batch) const {
  const auto tokens = std::ssize(batch.micro_batches.front().tokens);
  return data_rank_ * std::ssize(batch.micro_batches) * tokens;
}

void RankStep::run(const io::StepBatch& batch, StepMetrics& metrics, const StepHooks& hooks) {
  watch_.begin();
  const StepTotals totals = sums_.totals(batch);
  const bool has_labels = totals.unmasked_tokens > 0;
  const StepNumbers numbers{.update = scaler_.update_of(metrics.step),
                            .learning_rate = metrics.learning_rate,
                            .loss_scale = scaler_.scale(),
                            .seed = static_cast<std::uint64_t>(run_.train.seed),
                            .step = metrics.step,
                            .first_row = first_row_of(batch)};
  if (scales_loss(run_)) metrics.loss_scale = numbers.loss_scale;
  metrics.tokens = totals.unmasked_tokens;
  expert_counts_.clear();
  expert_room_.clear();
  std::ranges::fill(leaves_, 0.0);
  std::size_t num_forwards = 0;
  double loss = 0;  // of this rank
  PreferenceSums of_pairs;
  run_training_step(
      program_, batch, totals, numbers,
      [&](const io::MicroBatch& micro_batch) {
        const std::size_t num_leaves = leaves_.size() / kNumSums,
                          leaf = num_forwards++ * num_leaves / batch.micro_batches.size();
        expert_room_.look(program_);
        if (num_forwards == batch.micro_batches.size()) expert_room_.agree(sums_, metrics.step);
        Losses losses;
        add_losses(program_, losses);
        const Sums added{losses.loss, losses.aux_loss, losses.z_loss.value_or(0),
                         losses.mtp_loss.value_or(0),
                         has_labels ? micro_batch_flops(session_.config(), micro_batch) : 0};
        for (std::size_t i = 0; i < kNumSums; ++i) leaves_[leaf * kNumSums + i] += added[i];
        expert_counts_.add(program_);
        of_pairs.add(program_);
        loss += losses.loss;
        if (!scaler_.is_dynamic()) require_finite_loss(program_, metrics.step, loss);
      },
      [&] {
        if (hooks.before_update) hooks.before_update();
      });
  if (has_labels) {
    metrics.grad_norm = program_.scalar("grad_norm");
    if (hooks.after_norm) hooks.after_norm();
    const auto look = [&] { return first_overflow(batch, totals, numbers); };
    metrics.is_skipped = was_skipped(program_, scaler_, metrics.step, metrics.grad_norm,
                                     std::ref(look));  // without the heap
    if (!metrics.is_skipped) {
      if (hooks.before_update) hooks.before_update();
      require_finite_loss(program_, metrics.step, loss);
    }
  }
  Sums total;
  sums_.sum(leaves_, total);
  sums_.sum(expert_counts_.values());
  metrics.loss = total[kLoss];
  metrics.aux_loss = total[kAuxLoss];
  if (program_.executor->has_output("z_loss")) metrics.z_loss = total[kZLoss];
  if (program_.executor->has_output("mtp_loss")) metrics.mtp_loss = total[kMtpLoss];
  metrics.preference = of_pairs.means();
  flops_ = total[kFlops];
  if (has_labels && !metrics.is_skipped)
    update_router_biases(session_.store(), expert_counts_,
                         router_bias_rate_of(run_, session_.config()));
  metrics.comm = watch_.end();
}

std::string RankStep::first_overflow(const io::StepBatch& batch, const StepTotals& totals,
                                     const StepNumbers& numbers) {
  std::string first = first_bad_call(program_, [&] {
    run_training_step(program_, batch, totals, numbers, [](const io::MicroBatch&) {});
  });
  for (std::int32_t from = 1; from < num_ranks(); ++from) {
    const std::string of_rank = sums_.bring_text(from, first);
    if (first.empty() && !of_rank.empty()) first = fmt::format("{}, of rank {}", of_rank, from);
  }
  return first;
}

}  // namespace anabatic::train
