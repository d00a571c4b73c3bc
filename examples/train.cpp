// SPDX-License-Identifier: Apache-2.0
// usage: train MODEL TEXT OUTPUT: trains a randomly initialised model on a text file.
#include <anabatic/engine.h>
#include <anabatic/error.h>

#include <cstdio>

class Progress : public anabatic::RunListener {
 public:
  void on_plan(const anabatic::PlanSummary& plan) override {
    std::printf("planned peak: %.1f MB\n", 1e-6 * static_cast<double>(plan.peak_memory_bytes));
  }
  void on_step(const anabatic::StepMetrics& step) override {
    std::printf("step %d of %d: loss %.4f\n", static_cast<int>(step.step),
                static_cast<int>(step.steps), step.loss);
  }
};

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    Progress progress;
    anabatic::Config config;
    config.model = {.path = argv[1], .init = anabatic::Config::Model::Init::kRandom};
    config.data.train = {argv[2]};
    config.data.sequence_length = 32;
    config.train.steps = 5;
    config.train.output = argv[3];
    config.generate.max_new_tokens = 8;
    anabatic::Engine engine(config, &progress);
    const anabatic::TrainSummary summary = engine.train();
    std::printf("%s\n%s\n", summary.checkpoint.c_str(), engine.generate("Once").c_str());
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
