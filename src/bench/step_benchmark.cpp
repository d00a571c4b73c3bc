// SPDX-License-Identifier: Apache-2.0
// A whole training step of a model directory.
#include <algorithm>

#include "base/error.h"
#include "bench/cases.h"
#include "bench/check.h"
#include "bench/final_masks.h"
#include "passes/differentiate.h"
#include "train/loss_scale/loss_scaler.h"
#include "train/training_step.h"

namespace anabatic::bench {
namespace {

// `ref` takes about 2 ns for each FLOP.
constexpr double kStepCheckFlops = 2e9;
constexpr std::int64_t kMostStepTokens = 64;

train::RunConfig step_config(train::RunConfig run, Settings& settings) {
  ANABATIC_REQUIRE(!run.model.path.empty(), "[bench] step: expected --model.path DIR, got none");
  run.model.init = "random";
  run.train.micro_batch_size = settings.integer("batch", run.train.micro_batch_size);
  run.data.sequence_length = settings.integer("sequence", run.data.sequence_length);
  for (const std::string& problem : train::problems_of(run))
    throw InvalidArgument("[bench] " + problem);
  return with_final_masks(std::move(run));
}

// Forward and backward on a few tokens, with readable gradients.
struct Gradients {
  train::ModelSession session;
  std::unique_ptr<train::BoundProgram> program;

  Gradients(const train::RunConfig& run, std::string only_kernels) : session(run, false) {
    program = session.bind({.name = "check",
                            .build = {.num_tokens = run.data.sequence_length,
                                      .balance_coef = session.config().router_aux_loss_coef},
                            .training = true,
                            .with_update = false,
                            .only_kernels = std::move(only_kernels),
                            .as_trained = true});
    session.load_parameters();
    session.refresh_derived();
    const io::StepBatch batch = train::random_step(run, session.config(), 0);
    train::set_step_inputs(*program, batch, train::totals_of(batch), {});
    program->set_batch(batch.micro_batches[0]);
    train::set_dropout_draws(*program, {}, batch.micro_batches[0], 0);
    program->run_alone(spec::Action::kForward);
    program->run_alone(spec::Action::kBackward);
  }

  std::span<const float> gradient(const std::string& name) const {
    const TensorView view = program->executor->output(name);
    return {view.as<const float>(), static_cast<std::size_t>(view.type->num_elements())};
  }
};

class StepBenchmark final : public Benchmark {
 public:
  explicit StepBenchmark(const train::RunConfig& run)
      : session_(run, false),
        program_(train::bind_training(session_)),
        batch_(train::random_step(run, session_.config(), 0)),
        loss_scale_(train::make_loss_scaler(run).scale()) {
    session_.load_parameters();
    choose_masks(session_, run, program_->compiled.graph);
    session_.refresh_derived();
    double flops = 0;
    for (const io::MicroBatch& micro_batch : batch_.micro_batches)
      flops += train::micro_batch_flops(session_.config(), micro_batch);
    parts_ = {{"total", flops, 0}};
  }

  const std::vector<Part>& parts() const override { return parts_; }
  device::ThreadTeam& team() override { return session_.team(); }
  std::int64_t arena_bytes() const override { return program_->executor->arena_bytes(); }

  Check check() override {
    train::RunConfig run = session_.run();
    run.compiler.dump.clear();
    run.compiler.explain_dispatch = false;
    run.train.gradient_accumulation_steps = run.train.micro_batch_size = 1;
    const double flops_a_token =
        model::training_flops(session_.config(), 1, [](std::int64_t) { return 1.0; });
    run.data.sequence_length =
        std::min(run.data.sequence_length,
                 std::clamp(static_cast<std::int64_t>(kStepCheckFlops / flops_a_token),
                            std::int64_t{2}, kMostStepTokens));
    const Gradients got(run, ""), want(run, "ref");
    Comparison comparison(relative_bound(want.program->compiled.graph,
                                         train::uses_fp16(run)   ? spec::Precision::kFp16
                                         : train::uses_bf16(run) ? spec::Precision::kBf16
                                                                 : spec::Precision::kFp32),
                          run.data.sequence_length);
    const auto got_loss = static_cast<float>(got.program->scalar("loss")),
               want_loss = static_cast<float>(want.program->scalar("loss"));
    comparison.add("loss", {&got_loss, 1}, {&want_loss, 1});
    for (const train::SavedState& state : session_.saved_states()) {
      const std::string name = spec::state_name(spec::StateRole::kGradient, text(state.name));
      if (want.program->executor->has_output(name))
        comparison.add_to_sum(got.gradient(name), want.gradient(name));
    }
    comparison.close_sum("the gradient of all parameters");
    return comparison.worst();
  }

  void run(std::span<double> seconds) override {
    const std::int64_t begin = clock()();
    train::run_training_step(*program_, batch_, train::totals_of(batch_),
                             {++step_, 1e-4, loss_scale_}, [](const io::MicroBatch&) {});
    seconds[0] += 1e-9 * static_cast<double>(clock()() - begin);
  }

 private:
  train::ModelSession session_;
  std::unique_ptr<train::BoundProgram> program_;
  io::StepBatch batch_;
  std::vector<Part> parts_;
  std::int64_t step_ = 0;
  float loss_scale_;
};

}  // namespace

std::unique_ptr<Benchmark> make_step(const train::RunConfig& run, Settings& settings,
                                     bool accumulate) {
  ANABATIC_REQUIRE(!accumulate,
                   "[bench] step: --accumulate has no meaning here; expected "
                   "--train.gradient_accumulation_steps N");
  return std::make_unique<StepBenchmark>(step_config(run, settings));
}

}  // namespace anabatic::bench
