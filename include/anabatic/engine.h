// SPDX-License-Identifier: Apache-2.0
// The engine in a few lines:
//
//   anabatic::Config config;
//   config.model = {.path = "config.json", .init = anabatic::Config::Model::Init::kRandom};
//   config.data.train = {"text.jsonl"};
//   config.train.output = "run";
//   anabatic::Engine engine(config);
//   anabatic::TrainSummary summary = engine.train();
//   std::string continuation = engine.generate("Once upon a time");  // of the trained model
//
// Or step by step:
//
//   while (const std::optional<anabatic::StepMetrics> metrics = engine.step()) ...
//
// anabatic/config.h has every key, as on the command line and in its YAML file.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "anabatic/config.h"
#include "anabatic/events.h"
#include "anabatic/sequence.h"
#include "anabatic/state.h"

namespace anabatic {

struct TrainSummary {
  std::int64_t step = 0;     // the last step that was done
  bool interrupted = false;  // RunListener::stop_requested ended the run before train.steps
  double loss = 0;           // the last step's
  // Loss on data.validation, if given: at the start of a new run, and at its last validation.
  std::optional<EvaluationSummary> before, after;
  std::string checkpoint;  // directory of the newest checkpoint
  std::int64_t planned_memory_bytes = 0;
  std::int64_t peak_memory_bytes = 0;   // 0 if the system does not report it
  std::vector<LayerBalance> experts{};  // one for each MoE layer, over the last 100 steps at most
};

// Prints nothing and installs no signal handler. Engines are independent of each other. Several may
// exist in one process and run at the same time, each used by one thread at a time.
class ANABATIC_API Engine {
 public:
  // InvalidArgument lists every problem. `listener` gets the run's events and must outlive the
  // engine; it may be null.
  explicit Engine(const Config& config, RunListener* listener = nullptr);
  // From text. `settings` override the YAML file, if there is one.
  explicit Engine(const Settings& settings, const std::string& yaml_file = "",
                  RunListener* listener = nullptr);
  ~Engine();
  Engine(Engine&&) noexcept;

  // Plans, trains to train.steps and saves; resumes as train.resume says. Goes on with a run that
  // has been started.
  TrainSummary train();
  // Plans, allocates and resumes, and owns train.output from then on. Nothing if that is done.
  void start();
  // The next step of train(), with the validation and the checkpoint that are due after it. Starts
  // the run if need be. Empty: the run is over, and saved. An error ends the run, as in train();
  // what is called next begins it again, from its last checkpoint.
  std::optional<StepMetrics> step();
  // The same with samples of the host in place of the step's own; of one rank. InvalidArgument if
  // there are more than micro_batch_size * gradient_accumulation_steps or one is invalid: the run
  // goes on then.
  std::optional<StepMetrics> step(std::span<const Sequence> batch);
  // What train() returns, so far. InvalidArgument before start().
  TrainSummary summary() const;
  std::string
  save();  // the checkpoint of the last step, now. InvalidArgument if no run is going on

  // InvalidArgument before a run is started.
  const PlanSummary& plan() const;
  std::string graph() const;  // of the training step, as text

  // Both use the trained model, also between steps and after an interrupted run. Before a run, or
  // after one that threw, they use the model of model.path.
  EvaluationSummary evaluate();                     // loss on data.validation
  std::string generate(const std::string& prompt);  // the continuation

  // Parameters and optimizer state of a run that is started, in the order of their names. Of one
  // rank: several have a part each, which is Unsupported. The others are as in Session.
  const std::vector<StateInfo>& states();
  void read(const std::string& state, std::int64_t first, std::span<float> values);
  void write(const std::string& state, std::int64_t first, std::span<const float> values);
  // Valid until the engine ends, or after a run that threw until something else is asked of it.
  std::span<const float> view(const std::string& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
