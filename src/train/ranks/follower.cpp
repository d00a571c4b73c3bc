// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/follower.h"

#include <fmt/core.h>

#include <exception>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "plan/budget_error.h"
#include "train/calibration.h"
#include "train/checkpoint/checkpoint.h"
#include "train/open_dataset.h"
#include "train/ranks/rank_step.h"
#include "train/run_plan.h"
#include "train/schedule.h"

namespace anabatic::train {
namespace {

// This rank's program, by the first one's decisions.
lower::Compiled compile(const ModelSession& session, const Agreement& agreement,
                        std::int32_t rank) {
  RunConfig run = session.run();
  run.data.validation.clear();  // the first rank validates
  run.compiler.dump.clear();
  const Calibration calibration = stored_calibration(session.device());
  return plan::value_or_throw(plan_run(run, session.config(),
                                       with_peaks_of(session.device(), calibration),
                                       calibration.efficiency,
                                       {.replay = &agreement.decisions, .rank = rank}))
      .training;
}

}  // namespace

void follow(const Ranks& ranks, const RunConfig& run, const runtime::RankContext& rank,
            const io::Dataset* dataset, const std::function<bool()>& stop_requested) {
  const LogScope silence([](Severity, const std::string&) {});  // the first rank says it all
  Agreement agreement;
  {
    StepSums sums(rank, 1);
    agreement = hear(sums);
  }
  require_same(agreement, run, rank.rank());
  ModelSession session(ranks.of_one(run, 0), false, {}, rank);
  std::optional<io::Dataset> own;
  if (dataset == nullptr)
    dataset = &own.emplace(open_dataset(run.data.train, run, session.config()));
  const std::unique_ptr<BoundProgram> program =
      session.bind(compile(session, agreement, rank.rank()));
  require_same(agreement, program->compiled, rank.rank());
  if (agreement.checkpoint.empty())
    (void)session.load_parameters();
  else
    load_checkpoint(agreement.checkpoint, session);
  session.refresh_derived();
  RankStep steps(run, session, *program, rank);
  steps.compare_states(agreement.first_step);
  io::Loader loader(*dataset, loader_options(run, rank));
  for (std::int64_t step = agreement.first_step; steps.begin(step, !stop_requested()); ++step) {
    StepMetrics metrics{.step = step};
    metrics.learning_rate = learning_rate(run.optimizer, step, run.train.steps);
    steps.run(loader.load_step(step - 1), metrics);
  }
}

Followers::Followers(Ranks& ranks, const RunConfig& run, const io::Dataset& dataset)
    : ranks_(ranks) {
  for (std::int32_t thread = 1; thread < ranks.num_threads(); ++thread)
    threads_.emplace_back([this, context = ranks.of_thread(thread), &run, &dataset] {
      try {
        follow(ranks_, run, context, &dataset, [] { return false; });
      } catch (const std::exception& error) {
        context.communicator->abort(fmt::format("rank {}: {}", context.rank(), error.what()));
      }
    });
}

Followers::~Followers() {
  if (!threads_.empty()) ranks_.abort("the first rank ended");
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace anabatic::train
