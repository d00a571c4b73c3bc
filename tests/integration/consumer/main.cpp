// SPDX-License-Identifier: Apache-2.0
// usage: consumer MODEL_CONFIG TEXT OUTPUT [KEY=VALUE ...]: trains two steps through the installed
// API, and fails unless generation and evaluation are of what was trained.
#include <anabatic/engine.h>
#include <anabatic/error.h>
#include <anabatic/layers.h>
#include <anabatic/version.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace {

class Listener : public anabatic::RunListener {
 public:
  void on_step(const anabatic::StepMetrics& metrics) override { step_ = metrics.step; }
  void on_plan(const anabatic::PlanSummary& plan) override { planned_ = plan.peak_memory_bytes; }
  bool stop_requested() override { return step_ >= 2; }
  std::int64_t step_ = 0, planned_ = 0;
};

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "expected %s\n", what);
  ++failures;
}

void train(const anabatic::Settings& settings) {
  Listener listener;
  anabatic::Engine engine(settings, "", &listener);
  const std::string prompt = "Anabatic";
  const std::string random = engine.generate(prompt);
  const anabatic::TrainSummary summary = engine.train();
  expect(summary.step == 2 && summary.interrupted, "that the listener ends the run");
  expect(listener.planned_ > 0, "to hear of the plan");
  expect(engine.generate(prompt) != random, "to generate from the trained weights");
  const double loss = engine.evaluate().loss;
  expect(summary.before && loss != summary.before->loss, "to evaluate the trained weights");

  // Goes on from the checkpoint to its end.
  const anabatic::TrainSummary whole = anabatic::Engine(settings).train();
  expect(whole.step == 3 && whole.after.has_value(), "three steps in all");
  anabatic::Settings saved = settings;
  saved["model.path"] = {summary.checkpoint};
  saved["model.init"] = {"pretrained"};
  saved["train.precision"] = {"bf16"};  // as trained; fp32 weights are evaluated in fp32 unasked
  expect(anabatic::Engine(saved).evaluate().loss == loss, "the loss of the checkpoint");
  std::printf("anabatic %s: step %lld, loss %f\n", anabatic::kVersion,
              static_cast<long long>(whole.step), whole.loss);
}

// A norm of rows of ones is a row of ones, and moves with none of their elements.
void run_a_layer() {
  using anabatic::LayerDtype;
  anabatic::LayerEngine engine;
  const anabatic::LayerCall norm = engine.layer(
      {.layer = "rms_norm",
       .attributes = {{"epsilon", "0"}},
       .inputs = {{"x", LayerDtype::kFloat32, {2, 16}}, {"weight", LayerDtype::kFloat32, {16}}},
       .gradients = {"x"}});
  alignas(64) float x[32], weight[16], y[32], dx[32];
  for (float& value : x) value = 1;
  for (float& value : weight) value = 1;
  const void* const inputs[] = {x, weight};
  void* const outputs[] = {y};
  const void* const seeds[] = {x};
  void* const gradients[] = {dx, nullptr};
  norm.forward(inputs, outputs, {});
  norm.backward(inputs, {}, seeds, gradients);
  expect(norm.saved().empty(), "a norm to save nothing");
  for (const float value : y) expect(value == 1, "ones to stay ones");
  for (const float value : dx) expect(std::abs(value) < 1e-6f, "no gradient along a row of ones");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  anabatic::Config config;
  config.model = {.path = argv[1], .init = anabatic::Config::Model::Init::kRandom};
  config.data.train = config.data.validation = {argv[2]};
  config.data.sequence_length = 16;
  config.generate.max_new_tokens = 48;  // which are not the same by chance
  config.optimizer.learning_rate = 0.01;
  config.optimizer.warmup_steps = 0;
  config.train.save_dtype = anabatic::Config::Train::SaveDtype::kFp32;
  config.train.steps = 3;
  config.train.output = argv[3];
  anabatic::Settings settings = anabatic::to_settings(config);
  for (int i = 4; i < argc; ++i) {
    const std::string pair = argv[i];
    settings[pair.substr(0, pair.find('='))] = {pair.substr(pair.find('=') + 1)};
  }
  try {
    run_a_layer();
    train(settings);
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
