// SPDX-License-Identifier: Apache-2.0
#include "anabatic/engine.h"

#include "base/log.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/run_config.h"
#include "train/trainer.h"

namespace anabatic {

struct Engine::Impl {
  train::RunConfig run;
  RunListener silence;
  RunListener* listener;  // never null
  // The model of evaluate() and generate(): the trained one, or that of `alone` as loaded by the
  // first of them; none before that.
  std::unique_ptr<train::ModelSession> session;
  // One rank of the run, whose parts of a model others share while they train.
  train::RunConfig alone;

  Impl(const Settings& settings, const std::string& yaml_file, RunListener* wanted)
      : listener(wanted != nullptr ? wanted : &silence) {
    const LogScope scope(to_listener());
    run = alone = train::load_run_config(yaml_file, {settings.begin(), settings.end()});
    alone.parallel = {};
    alone.train.gradient_leaves = train::RunConfig::Train::kOneADataRank;
  }

  // Takes what was trained: a rank's parts of a model are read again as a whole.
  void take(train::Trainer& trainer, const std::string& checkpoint) {
    if (run.parallel.local_ranks == 1) {
      session = trainer.take_session();
      return;
    }
    alone.model.path = checkpoint;
    alone.model.init = "pretrained";
  }

  LogSink to_listener() {
    return [this](Severity severity, const std::string& text) {
      listener->on_message(severity, text);
    };
  }

  // Calls body(session). One that could not be filled is not kept.
  template <class Body>
  auto with_session(Body&& body) {
    const LogScope scope(to_listener());
    if (!session) session = std::make_unique<train::ModelSession>(alone, false);
    try {
      return body(*session);
    } catch (...) {
      if (!session->has_parameters()) session.reset();
      throw;
    }
  }
};

Engine::Engine(const Config& config, RunListener* listener)
    : Engine(to_settings(config), "", listener) {}
Engine::Engine(const Settings& settings, const std::string& yaml_file, RunListener* listener)
    : impl_(std::make_unique<Impl>(settings, yaml_file, listener)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

TrainSummary Engine::train() {
  const LogScope scope(impl_->to_listener());
  impl_->session.reset();  // two models need not fit into memory
  impl_->alone.model = impl_->run.model;
  train::Trainer trainer(impl_->run, *impl_->listener);
  const train::TrainResult result = trainer.train();
  impl_->take(trainer, result.checkpoint.string());
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

EvaluationSummary Engine::evaluate() {
  return impl_->with_session([](train::ModelSession& session) { return train::evaluate(session); });
}

std::string Engine::generate(const std::string& prompt) {
  std::string continuation;
  impl_->with_session([&](train::ModelSession& session) {
    train::generate_text(session, prompt, [&](const std::string& piece) { continuation += piece; });
  });
  return continuation;
}

}  // namespace anabatic
