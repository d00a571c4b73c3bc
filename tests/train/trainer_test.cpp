// SPDX-License-Identifier: Apache-2.0
// Whole runs of a tiny Mixtral: learning, resuming, accumulation, thread counts, and what stops a
// run.
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/budget_error.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/metrics.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;

std::vector<nlohmann::json> metrics_of(const RunConfig& run) {
  return anabatic::testing::json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl");
}

TEST(Trainer, LearnsARuleAndWritesWhatItPromises) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.steps = 80;
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  const TrainResult result = Trainer(run).train();
  ASSERT_TRUE(result.before && result.after);
  EXPECT_LT(result.after->loss, result.before->loss - 1.0);
  EXPECT_EQ(result.step, 80);

  const auto lines = metrics_of(run);
  ASSERT_EQ(lines.size(), 80u);
  for (const char* key :
       {"step", "loss", "aux_loss", "grad_norm", "learning_rate", "tokens_per_second",
        "step_time_s", "tflops", "mfu", "peak_memory_bytes", "planned_memory_bytes", "expert_load"})
    EXPECT_TRUE(lines.back().contains(key)) << key;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const nlohmann::json& line = lines[i];
    EXPECT_EQ(line["step"], i + 1);
    const double seconds = line["step_time_s"], speed = line["tokens_per_second"];
    EXPECT_GT(seconds, 0);
    EXPECT_EQ(std::lround(speed * seconds), 32);  // input tokens
    EXPECT_GT(line["tokens"], 0);
    EXPECT_LE(line["tokens"], 32);
    EXPECT_GT(line["tflops"], 0.0);
    EXPECT_GT(line["mfu"], 0.0);
    EXPECT_GT(line["aux_loss"], 0.9);  // 1 when balanced, experts / top_k at worst
    EXPECT_LE(line["aux_loss"], 2.0);
    EXPECT_GT(line["peak_memory_bytes"], 1 << 20);
    EXPECT_GT(line["planned_memory_bytes"], 1 << 20);
    ASSERT_EQ(line["expert_load"].size(), 2u);
    for (const double load : line["expert_load"]) {
      EXPECT_GE(load, 1.0);
      EXPECT_LE(load, 2.0);  // experts / top_k
    }
    ASSERT_EQ(line["expert_load_min"].size(), 2u);
    for (const double load : line["expert_load_min"]) {
      EXPECT_GE(load, 0.0);
      EXPECT_LE(load, 1.0);
    }
    ASSERT_EQ(line["experts_below_10_percent"].size(), 2u);
  }
  EXPECT_EQ(latest_checkpoint(run.train.output), result.checkpoint);
  EXPECT_EQ(result.checkpoint.filename(), "step-00000080");
  for (const char* file : {"config.json", "model.safetensors", "run_config.yaml"})
    EXPECT_TRUE(std::filesystem::exists(result.checkpoint / file)) << file;
}

TEST(Trainer, ResumesBitForBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory whole_folder, broken_folder;
    RunConfig whole = tiny_run(whole_folder.path()), broken = tiny_run(broken_folder.path());
    whole.train.precision = broken.train.precision = precision;
    const TrainResult unbroken = Trainer(whole).train();

    broken.train.save_every = 3;
    broken.train.keep_last = 0;
    Trainer(broken).train();
    // As after a crash in step 5 or later: `latest` still names step 3, the metrics run ahead.
    anabatic::testing::go_back_to(broken.train.output, 3);
    const TrainResult resumed = Trainer(broken).train();
    EXPECT_TRUE(checkpoint_bytes(unbroken.checkpoint) == checkpoint_bytes(resumed.checkpoint))
        << precision;

    const auto a = metrics_of(whole), b = metrics_of(broken);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i]["step"], b[i]["step"]);
      EXPECT_EQ(a[i]["loss"], b[i]["loss"]);
      EXPECT_EQ(a[i]["grad_norm"], b[i]["grad_norm"]);
    }
  }
}

TEST(Trainer, GivesEqualBitsOnAnyThreadCount) {
  std::string first;
  for (const int threads : {1, 2, 3}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path());
    run.train.precision = "bf16";
    run.device.threads = threads;
    const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << threads << " threads";
  }
}

TEST(Trainer, GivesEqualBitsWithTrivialPlannersPassesOffAndPoison) {
  const TemporaryDirectory plain_folder, folder;
  RunConfig plain = tiny_run(plain_folder.path()), run = tiny_run(folder.path());
  plain.train.gradient_accumulation_steps = run.train.gradient_accumulation_steps = 2;
  plain.compiler.trivial_planners = true;
  plain.compiler.poison = true;
  plain.compiler.disable_passes.push_back("common_subexpression");
  EXPECT_TRUE(checkpoint_bytes(Trainer(plain).train().checkpoint) ==
              checkpoint_bytes(Trainer(run).train().checkpoint));
}

TEST(Trainer, GivesEqualBitsWithoutTransposedPackings) {
  const TemporaryDirectory both_folder, one_folder;
  RunConfig both = tiny_run(both_folder.path()), one = tiny_run(one_folder.path());
  both.train.precision = one.train.precision = "bf16";
  one.compiler.pack_transposed = false;
  EXPECT_TRUE(checkpoint_bytes(Trainer(both).train().checkpoint) ==
              checkpoint_bytes(Trainer(one).train().checkpoint));
}

TEST(Trainer, GivesEqualBitsWhateverTheBackwardMakesAgain) {
  for (const char* precision : {"fp32", "bf16"})
    for (const int micro_batches : {1, 2}) {
      std::string want;
      for (const std::vector<std::string>& hints :
           std::vector<std::vector<std::string>>{{},
                                                 {"attention"},
                                                 {"experts"},
                                                 {"attention_norm", "mlp_norm"},
                                                 {"experts.activation", "experts.up"},
                                                 {"layers.0", "embedding"}}) {
        const TemporaryDirectory folder;
        RunConfig run = tiny_run(folder.path());
        run.train.precision = precision;
        run.train.gradient_accumulation_steps = micro_batches;
        run.train.steps = 3;
        run.memory.recompute = hints;
        const std::string got = checkpoint_bytes(Trainer(run).train().checkpoint);
        if (want.empty()) want = got;
        EXPECT_TRUE(got == want) << precision << " " << micro_batches << " "
                                 << (hints.empty() ? "" : hints[0]);
      }
    }
}

TEST(Trainer, RefusesABudgetBeforeTheFirstStep) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.memory.budget = 1 << 20;
  EXPECT_THROW(Trainer{run}, plan::BudgetError);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(run.train.output) / "metrics.jsonl"));
}

// Odd sides, two micro-batches, validations in between, and a resume that changes the layout.
TEST(Trainer, GivesEqualBitsWithStatesInPanelsOrRows) {
  const std::string sizes = "\"hidden_size\": 24, \"intermediate_size\": 21";
  for (const char* precision : {"fp32", "bf16"}) {
    std::string rows;
    for (const bool in_panels : {false, true}) {
      const TemporaryDirectory folder;
      RunConfig run = tiny_run(folder.path(), sizes);
      run.train.precision = precision;
      run.train.gradient_accumulation_steps = 2;
      run.train.validate_every = 2;
      run.train.save_every = 3;
      run.train.keep_last = 0;
      run.data.validation = {
          anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
      if (!in_panels) run.compiler.disable_passes.push_back("panel_states");
      const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
      if (!in_panels) rows = bytes;
      EXPECT_TRUE(bytes == rows) << precision;
      anabatic::testing::go_back_to(run.train.output, 3);
      run.compiler.disable_passes.clear();
      if (in_panels) run.compiler.disable_passes.push_back("panel_states");
      testing::apply_test_config(run);
      EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == rows)
          << precision << ", resumed";
    }
  }
}

TEST(Trainer, SumsSquaresInProductsAsInAPassOfTheirOwn) {
  for (const char* precision : {"fp32", "bf16"}) {
    std::vector<std::vector<float>> norms;
    for (const bool in_products : {false, true}) {
      const TemporaryDirectory folder;
      RunConfig run = tiny_run(folder.path(), "\"hidden_size\": 24, \"intermediate_size\": 21");
      run.train.precision = precision;
      if (!in_products) run.compiler.disable_passes.push_back("accumulate_in_gemm");
      Trainer(run).train();
      for (const nlohmann::json& line : metrics_of(run)) {
        if (!in_products) norms.push_back({line["grad_norm"]});
        if (in_products) norms.at(line["step"].get<std::size_t>() - 1).push_back(line["grad_norm"]);
      }
    }
    // The first norm is off by roundings of f64; later steps start from equal weights but for that.
    ASSERT_EQ(norms.at(0).size(), 2u);
    EXPECT_LE(std::abs(norms[0][0] - norms[0][1]),
              anabatic::testing::agreement_tolerance(norms[0][0], DType::kFloat32))
        << precision;
    EXPECT_LE(std::abs(norms[1][0] - norms[1][1]),
              anabatic::testing::agreement_tolerance(norms[1][0], DType::kFloat32))
        << precision;
  }
}

TEST(Trainer, KeepsTheNewestCheckpoints) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.save_every = 2;
  run.train.keep_last = 2;
  Trainer(run).train();
  const std::filesystem::path output = run.train.output;
  EXPECT_FALSE(std::filesystem::exists(output / "step-00000004"));
  EXPECT_TRUE(std::filesystem::exists(output / "step-00000006"));
  EXPECT_TRUE(std::filesystem::exists(output / "step-00000008"));
}

TEST(Metrics, SayThatAPeakIsUnknownWhereTheSystemDoesNotTell) {
  const TemporaryDirectory folder;
  const StepMetrics metrics{.step = 1, .steps = 2, .planned_memory_bytes = 1 << 20};
  MetricsLog(folder.path(), 0, true).write(metrics);
  const auto line = nlohmann::json::parse(read_file(folder.path() / "metrics.jsonl"));
  EXPECT_TRUE(line["peak_memory_bytes"].is_null()) << line;
}

TEST(Trainer, PredictsItsPeakMemoryFreshAndResumed) {
  if (testing::kIsSanitized) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"vocab_size\": 20000, \"hidden_size\": 64");
  run.train.precision = "bf16";
  for (const std::int64_t steps : {1, 2}) {
    run.train.steps = steps;
    const TrainResult result = Trainer(run).train();
    const std::int64_t predicted = result.planned_memory_bytes;
    EXPECT_GT(predicted, std::int64_t{20000} * 64 * 2 * 16);  // two matrices, 16 bytes a parameter
    EXPECT_LT(std::abs(result.peak_memory_bytes - predicted),
              std::max(predicted / 50, std::int64_t{16} << 20))
        << predicted << " predicted, " << result.peak_memory_bytes << " measured";
    EXPECT_LT(result.peak_memory_bytes - predicted,
              std::max(predicted / 100, std::int64_t{8} << 20));
    EXPECT_NE(read_file(folder.path() / "run" / "plan.txt").find("optimizer state"),
              std::string::npos);
  }
}

TEST(Trainer, StopsOnNonFiniteLossAndKeepsTheLastCheckpoint) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.save_every = 1;
  run.optimizer.learning_rate = 1e30;
  run.optimizer.warmup_steps = 0;
  run.optimizer.clip_grad_norm = 0;
  try {
    Trainer(run).train();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[train] step "));
    EXPECT_THAT(error.what(), HasSubstr("first in"));
  }
  EXPECT_TRUE(latest_checkpoint(run.train.output).has_value());
}

// Ends the run after a step.
class StopAfter : public RunListener {
 public:
  explicit StopAfter(std::int64_t step) : last_(step) {}
  void on_step(const StepMetrics& metrics) override { step_ = metrics.step; }
  bool stop_requested() override { return step_ == last_; }

 private:
  std::int64_t last_, step_ = 0;
};

TEST(Trainer, StopsWithACheckpointWhenItsListenerAsks) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.steps = 1000000;
  StopAfter listener(3);
  const TrainResult result = Trainer(run, listener).train();
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.step, 3);
  EXPECT_TRUE(std::filesystem::exists(result.checkpoint / "config.json"));
}

TEST(Trainer, RefusesToResumeOtherData) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  Trainer(run).train();
  run.train.seed = 5;
  run.train.micro_batch_size = 3;
  try {
    Trainer trainer(run);
    FAIL() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("train.seed"));
    EXPECT_THAT(error.what(), HasSubstr("train.micro_batch_size"));
  }
}

}  // namespace
}  // namespace anabatic::train
