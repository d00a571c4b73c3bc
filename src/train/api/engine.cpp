// SPDX-License-Identifier: Apache-2.0
#include "anabatic/engine.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/log.h"
#include "train/api/model_states.h"
#include "train/api/step_data.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/ranks/ranks.h"
#include "train/run_config.h"
#include "train/trainer.h"

namespace anabatic {

struct Engine::Impl {
  train::RunConfig run;
  RunListener silence;
  RunListener* listener;                    // never null
  std::unique_ptr<train::Trainer> trainer;  // of a run that is going on
  // The model of evaluate(), generate() and states where no run is: the trained one, or that of
  // `alone` as loaded by the first of them; none before that.
  std::unique_ptr<train::ModelSession> session;
  // One rank of the run, whose parts of a model others share while they train.
  train::RunConfig alone;
  std::optional<TrainSummary> summary;  // of the run that has ended
  std::vector<StateInfo> states;        // as listed
  PlanSummary plan;                     // of the newest run
  std::string graph;                    // likewise
  bool is_written = false;              // by the host since the last step
  bool has_failed = false;              // the run: its states stay until something else is asked

  Impl(const Settings& settings, const std::string& yaml_file, RunListener* wanted)
      : listener(wanted != nullptr ? wanted : &silence) {
    const LogScope scope(to_listener());
    run = alone = train::load_run_config(yaml_file, {settings.begin(), settings.end()});
    alone.parallel = {};
    alone.train.gradient_leaves = train::RunConfig::Train::kOneADataRank;
  }

  LogSink to_listener() {
    return [this](Severity severity, const std::string& text) {
      listener->on_message(severity, text);
    };
  }

  bool is_running() const { return trainer && !has_failed; }

  void drop_failed() {
    if (has_failed) trainer.reset();
    has_failed = false;
  }

  void start() {
    if (is_running()) return;
    drop_failed();
    summary.reset();
    session.reset();  // two models need not fit into memory
    alone.model = run.model;
    trainer = std::make_unique<train::Trainer>(run, *listener);
    plan = trainer->plan();
    graph = ir::print(trainer->compiled().graph);
  }

  std::optional<StepMetrics> step(const io::StepBatch* of_host) {
    start();
    refresh_written(trainer->session());
    try {
      std::optional<StepMetrics> metrics = trainer->step(of_host);
      if (!metrics) end();
      return metrics;
    } catch (...) {
      has_failed = true;
      throw;
    }
  }

  // Copies and packings agree with what the host has written.
  void refresh_written(train::ModelSession& model) {
    if (is_written && trainer != nullptr) model.refresh_derived(trainer->result().step);
    if (is_written && trainer == nullptr) model.refresh_derived();
    is_written = false;
  }

  static TrainSummary summary_of(const train::TrainResult& result) {
    return {.step = result.step,
            .interrupted = result.interrupted,
            .loss = result.loss,
            .before = result.before,
            .after = result.after,
            .checkpoint = result.checkpoint.string(),
            .planned_memory_bytes = result.planned_memory_bytes,
            .peak_memory_bytes = result.peak_memory_bytes,
            .experts = result.experts};
  }

  // Takes what was trained: a rank's parts of a model are read again as a whole.
  void end() {
    summary = summary_of(trainer->result());
    if (run.parallel.local_ranks == 1) {
      session = trainer->take_session();
    } else {
      alone.model.path = summary->checkpoint;
      alone.model.init = "pretrained";
    }
    trainer.reset();
  }

  const train::Trainer& started() const {
    ANABATIC_REQUIRE(is_running(),
                     "[engine] expected a run that is going on, got none: start() begins it");
    return *trainer;
  }

  // Calls body(session). One that could not be filled is not kept.
  template <class Body>
  auto with_session(Body&& body) {
    const LogScope scope(to_listener());
    drop_failed();
    if (trainer) {
      if (run.parallel.local_ranks > 1)
        throw Unsupported(fmt::format(
            "[engine] expected one rank, got {} that train: each holds a part of the model; save() "
            "and read the checkpoint, or wait until the run is over",
            run.parallel.local_ranks));
      return body(trainer->session());
    }
    if (!session) session = std::make_unique<train::ModelSession>(alone, false);
    try {
      return body(*session);
    } catch (...) {
      if (!session->has_parameters()) session.reset();
      throw;
    }
  }

  // Likewise, of a run that has been started: before that no state is planned.
  template <class Body>
  auto with_states(Body&& body) {
    ANABATIC_REQUIRE(is_running() || summary,
                     "[engine] expected a run with states, got none: start() begins it");
    if (!trainer && !session)
      throw Unsupported(
          "[engine] expected states in memory, got a run of several ranks that is over: they are "
          "in its checkpoint");
    return with_session(std::forward<Body>(body));
  }
};

Engine::Engine(const Config& config, RunListener* listener)
    : Engine(to_settings(config), "", listener) {}
Engine::Engine(const Settings& settings, const std::string& yaml_file, RunListener* listener)
    : impl_(std::make_unique<Impl>(settings, yaml_file, listener)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

TrainSummary Engine::train() {
  start();
  while (step()) {
  }
  return summary();
}

void Engine::start() {
  const LogScope scope(impl_->to_listener());
  impl_->start();
}

std::optional<StepMetrics> Engine::step() {
  const LogScope scope(impl_->to_listener());
  if (impl_->summary) return std::nullopt;
  return impl_->step(nullptr);
}

std::optional<StepMetrics> Engine::step(std::span<const Sequence> batch) {
  const LogScope scope(impl_->to_listener());
  if (impl_->summary) return std::nullopt;
  impl_->start();
  const train::RunConfig& run = impl_->run;
  train::require_one_rank(run, "engine");
  const std::int64_t most = run.train.micro_batch_size * run.train.gradient_accumulation_steps;
  ANABATIC_REQUIRE(static_cast<std::int64_t>(batch.size()) <= most,
                   "[engine] expected at most {} sequences (train.micro_batch_size times "
                   "train.gradient_accumulation_steps), got {}",
                   most, batch.size());
  const io::StepBatch data =
      train::make_step(batch, train::step_shape(run, impl_->trainer->session()));
  ANABATIC_REQUIRE(data.unmasked_tokens > 0,
                   "[engine] expected a label to learn, got none in {} sequences", batch.size());
  return impl_->step(&data);
}

TrainSummary Engine::summary() const {
  return impl_->summary ? *impl_->summary : Impl::summary_of(impl_->started().result());
}

std::string Engine::save() {
  const LogScope scope(impl_->to_listener());
  (void)impl_->started();
  return impl_->trainer->save().string();
}

const PlanSummary& Engine::plan() const {
  if (!impl_->summary) (void)impl_->started();
  return impl_->plan;
}

std::string Engine::graph() const {
  if (!impl_->summary) (void)impl_->started();
  return impl_->graph;
}

EvaluationSummary Engine::evaluate() {
  if (impl_->is_running()) {
    const LogScope scope(impl_->to_listener());
    impl_->refresh_written(impl_->trainer->session());
    return impl_->trainer->evaluate();
  }
  return impl_->with_session([](train::ModelSession& session) { return train::evaluate(session); });
}

std::string Engine::generate(const std::string& prompt) {
  std::string continuation;
  impl_->with_session([&](train::ModelSession& session) {
    impl_->refresh_written(session);
    train::generate_text(session, prompt, [&](const std::string& piece) { continuation += piece; });
  });
  return continuation;
}

const std::vector<StateInfo>& Engine::states() {
  impl_->with_states(
      [&](train::ModelSession& session) { impl_->states = train::list_states(session); });
  return impl_->states;
}

void Engine::read(const std::string& state, std::int64_t first, std::span<float> values) {
  impl_->with_states(
      [&](train::ModelSession& session) { train::read_state(session, state, first, values); });
}

void Engine::write(const std::string& state, std::int64_t first, std::span<const float> values) {
  impl_->with_states([&](train::ModelSession& session) {
    train::write_state(session, state, first, values);
    impl_->is_written = true;
  });
}

std::span<const float> Engine::view(const std::string& state) {
  return impl_->with_states(
      [&](train::ModelSession& session) { return train::view_state(session, state); });
}

}  // namespace anabatic
