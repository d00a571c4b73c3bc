// SPDX-License-Identifier: Apache-2.0
// The engine in a few lines:
//
//   anabatic::Config config;
//   config.model = {.path = "config.json", .init = anabatic::Config::Model::Init::kRandom};
//   config.data.train = {"text.jsonl"};
//   config.train.output = "run";
//   anabatic::Engine engine(config);
//   anabatic::TrainSummary summary = engine.train();
//   std::string continuation = engine.generate("Once upon a time");  // of the model as trained
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
  std::int64_t step = 0;     // the last one done
  bool interrupted = false;  // RunListener::stop_requested ended the run before train.steps
  double loss = 0;           // of the last step
  // On data.validation, where given: at the start of a fresh run, and of the last validation.
  std::optional<EvaluationSummary> before, after;
  std::string checkpoint;  // the newest checkpoint's directory
  std::int64_t planned_memory_bytes = 0;
  std::int64_t peak_memory_bytes = 0;   // 0: the system does not say
  std::vector<LayerBalance> experts{};  // a MoE layer, over the last steps done, at most 100
};

// Prints nothing and catches no signal. Engines are independent of each other: several may live in
// one process and work at once, each on one thread at a time.
class ANABATIC_API Engine {
 public:
  // InvalidArgument lists every problem. `listener`, which must outlive the engine, hears what goes
  // on; none: nobody does.
  explicit Engine(const Config& config, RunListener* listener = nullptr);
  // From text. Settings win over the YAML file, when one is given.
  explicit Engine(const Settings& settings, const std::string& yaml_file = "",
                  RunListener* listener = nullptr);
  ~Engine();
  Engine(Engine&&) noexcept;

  TrainSummary train();  // plans, trains to train.steps and saves; resumes as train.resume says
  // Of the model as train() has left it, interrupted or not; of model.path before that, and after a
  // train() that threw.
  EvaluationSummary evaluate();                     // the loss on data.validation
  std::string generate(const std::string& prompt);  // the continuation

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
