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
// anabatic/config.h has every key, as on the command line and in its YAML file.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "anabatic/config.h"
#include "anabatic/events.h"

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

  TrainSummary train();  // plans, trains to train.steps and saves; resumes as train.resume says
  // Both use the trained model after train(), also after an interrupted one. Before train(), or
  // after one that threw, they use the model of model.path.
  EvaluationSummary evaluate();                     // loss on data.validation
  std::string generate(const std::string& prompt);  // the continuation

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
