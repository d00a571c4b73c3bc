// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/follower.h"

#include <fmt/core.h>

#include <exception>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "device/clock.h"
#include "device/memory.h"
#include "plan/budget_error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/kept_batch.h"
#include "train/metrics.h"
#include "train/open_dataset.h"
#include "train/ranks/agreed_machine.h"
#include "train/ranks/rank_step.h"
#include "train/run_plan.h"
#include "train/schedule.h"

namespace anabatic::train {
namespace {

// This rank's program, by the first one's decisions.
lower::Compiled compile(const ModelSession& session, const spec::Decisions& decisions,
                        std::int32_t rank) {
  RunConfig run = session.run();
  run.data.validation.clear();  // the evaluator compiles its own program
  run.compiler.dump.clear();
  const Machine machine = priced_machine(session.device());
  return plan::value_or_throw(plan_run(run, session.config(), machine.device, machine.efficiency,
                                       {.replay = &decisions, .rank = rank}))
      .training;
}

// The first text is the one that all ranks hear.
void abort(const runtime::RankContext& rank, const std::exception& error) {
  rank.communicator->abort(fmt::format("rank {}: {}", rank.rank(), error.what()));
}

struct Data {
  const io::Dataset *train = nullptr, *validation = nullptr;  // null: opened here
};

void follow_first(const Ranks& ranks, const RunConfig& run, const runtime::RankContext& rank,
                  Data data, const std::function<bool()>& stop_requested) {
  std::optional<LogScope> silence(std::in_place, LogSink{});  // the first rank says as much
  ModelSession session(ranks.of_one(run, 0), false, {}, rank);
  std::optional<io::Dataset> own, own_validation;
  if (data.train == nullptr) {
    data.train = &own.emplace(open_dataset(run.data.train, run, session.config()));
    if (!run.data.validation.empty())
      data.validation =
          &own_validation.emplace(open_dataset(run.data.validation, run, session.config()));
    device::reset_peak_resident();  // as the first rank does, before it plans
    StepSums sums(rank, 1);
    (void)agree_on_machine(
        sums, priced_machine(session.device(),
                             {.process_bytes = device::current_resident_bytes(),
                              .available_bytes = device::available_bytes() / ranks.num_on_node()},
                             ranks.num_on_node()));
  }
  Agreement agreement;
  {
    StepSums sums(rank, 1);
    agreement = hear(sums);
  }
  require_same(agreement, run, rank.rank());
  MethodPolicy methods = ranks.methods();
  methods.measured = agreement.measured;
  session.set_methods(std::move(methods));
  std::unique_ptr<BoundProgram> program =
      session.bind(compile(session, agreement.decisions, rank.rank()));
  require_same(agreement, program->compiled, rank.rank());
  std::optional<Evaluator> evaluator;
  if (data.validation != nullptr) evaluator.emplace(session, *data.validation);
  try {
    // The weights under an adapter are in no checkpoint.
    if (agreement.checkpoint.empty() || session.config().adapter) (void)session.load_parameters();
    if (!agreement.checkpoint.empty()) load_checkpoint(agreement.checkpoint, session);
    session.refresh_derived(agreement.first_step - 1);
    silence.reset();
    std::optional<RankStep> steps;
    LossScaler scaler = make_loss_scaler(run);
    if (!agreement.checkpoint.empty())
      scaler.restore(read_loss_scale(read_progress(agreement.checkpoint).loss_scale));
    const auto begin_steps = [&] {
      steps.emplace(run, session, *program, scaler, rank);
      if (evaluator) steps->validate_with(&*evaluator);
    };
    begin_steps();
    steps->compare_states(agreement.first_step);
    io::Loader loader(*data.train, loader_options(run, rank));
    std::optional<RankMetricsLog> log;
    if (!run.train.output.empty())
      log.emplace(run.train.output, rank.rank(), agreement.first_step - 1);
    for (std::int64_t step = agreement.first_step; steps->begin(step, !stop_requested());) {
      const std::int64_t begin = device::wall_nanoseconds();
      StepMetrics metrics{.step = step};
      metrics.learning_rate = learning_rate(run.optimizer, step, run.train.steps);
      try {
        steps->run(loader.load_step(step - 1), metrics);
      } catch (const MoreExpertRoom&) {  // as the first rank does, which says so
        const LogScope quiet(LogSink{});
        steps.reset();
        program.reset();
        {
          StepSums sums(rank, 1);
          agreement = hear(sums);
        }
        program = session.bind(compile(session, agreement.decisions, rank.rank()));
        require_same(agreement, program->compiled, rank.rank());
        session.refresh_derived(step - 1);
        begin_steps();
        continue;
      }
      metrics.step_time_s = 1e-9 * static_cast<double>(device::wall_nanoseconds() - begin);
      if (own) metrics.peak_memory_bytes = device::peak_resident_bytes();
      if (log) log->write(metrics);
      ++step;
    }
  } catch (const std::exception& error) {
    abort(rank, error);  // before the program goes, and with it the bytes of exchanges under way
    throw;
  }
}

// Tells the other ranks of an error.
void follow_or_abort(const Ranks& ranks, const RunConfig& run, const runtime::RankContext& rank,
                     const Data& data, const std::function<bool()>& stop_requested) {
  try {
    follow_first(ranks, run, rank, data, stop_requested);
  } catch (const std::exception& error) {
    abort(rank, error);
    throw;
  }
}

}  // namespace

void follow(const RunConfig& run, comm::MpiWorld& world,
            const std::function<bool()>& stop_requested) {
  const RunConfig trained = keep_batch(with_training_precision(run)).run;
  Ranks ranks(trained, &world);
  follow_or_abort(ranks, trained, ranks.own(), {}, stop_requested);
  ranks.done();
}

Followers::Followers(Ranks& ranks, const RunConfig& run, const io::Dataset& dataset,
                     const io::Dataset* validation)
    : ranks_(ranks) {
  for (std::int32_t thread = 1; thread < ranks.num_threads(); ++thread)
    threads_.emplace_back(
        [this, context = ranks.of_thread(thread), &run, data = Data{&dataset, validation}] {
          try {
            follow_or_abort(ranks_, run, context, data, [] { return false; });
          } catch (const std::exception&) {
            // The first rank has its text.
          }
        });
}

Followers::~Followers() {
  if (!threads_.empty()) ranks_.abort("the first rank ended");
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace anabatic::train
