// SPDX-License-Identifier: Apache-2.0
#include "anabatic/engine.h"

#include "train/evaluate.h"
#include "train/generate.h"
#include "train/run_config.h"
#include "train/trainer.h"

namespace anabatic {

struct Engine::Impl {
  train::RunConfig run;
};

Engine::Engine(const Settings& settings, const std::string& yaml_file)
    : impl_(std::make_unique<Impl>(
          Impl{train::load_run_config(yaml_file, {settings.begin(), settings.end()})})) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

TrainSummary Engine::train() {
  const train::TrainResult result = train::Trainer(impl_->run).train();
  return {.step = result.step,
          .loss = result.loss,
          .checkpoint = result.checkpoint.string(),
          .planned_memory_bytes = result.planned_memory_bytes,
          .peak_memory_bytes = result.peak_memory_bytes};
}

EvaluationSummary Engine::evaluate() {
  const train::Evaluation result = train::evaluate(impl_->run);
  return {.loss = result.loss, .perplexity = result.perplexity, .tokens = result.tokens};
}

std::string Engine::generate(const std::string& prompt) {
  std::string continuation;
  train::generate_text(impl_->run, prompt,
                       [&](const std::string& piece) { continuation += piece; });
  return continuation;
}

}  // namespace anabatic
