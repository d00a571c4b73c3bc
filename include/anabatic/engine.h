// SPDX-License-Identifier: Apache-2.0
// The engine in a few lines:
//
//   anabatic::Engine engine({{"model.path", {"config.json"}}, {"model.init", {"random"}},
//                            {"data.train", {"text.jsonl"}}, {"train.output", {"run"}}});
//   anabatic::TrainSummary summary = engine.train();
//
// Keys are those of the command line and its YAML file.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace anabatic {

using Settings = std::map<std::string, std::vector<std::string>>;

struct TrainSummary {
  std::int64_t step = 0;   // the last one done
  double loss = 0;         // of that step
  std::string checkpoint;  // the newest checkpoint's directory
  std::int64_t planned_memory_bytes = 0;
  std::int64_t peak_memory_bytes = 0;  // 0: the system does not say
};

struct EvaluationSummary {
  double loss = 0, perplexity = 0;
  std::int64_t tokens = 0;
};

class Engine {
 public:
  // Settings win over the YAML file, when one is given. InvalidArgument lists every problem.
  explicit Engine(const Settings& settings, const std::string& yaml_file = "");
  ~Engine();
  Engine(Engine&&) noexcept;

  TrainSummary train();  // plans, trains to train.steps and saves; resumes as train.resume says
  EvaluationSummary evaluate();                     // of model.path on data.validation
  std::string generate(const std::string& prompt);  // the continuation

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
