// SPDX-License-Identifier: Apache-2.0
// Runs with activations, or their gradients alone, in fp16: losses next to those of bf16, equal
// bits however they are planned and resumed, memory, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "anabatic/error.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "support/trained_run.h"
#include "train/loss_scale/loss_scaler.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::recomputing;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::HasSubstr;

constexpr const char* kExperts = R"("hidden_size": 64, "intermediate_size": 96)";
constexpr const char* kDense = R"("model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64, "intermediate_size": 160, "num_local_experts": 0,
    "output_router_logits": false)";
constexpr const char* kLatent = R"("model_type": "deepseek_v3", "hidden_size": 64,
    "intermediate_size": 96, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 48, "first_k_dense_replace": 1)";
constexpr const char* kBiased = R"("model_type": "gpt_oss", "hidden_size": 64,
    "intermediate_size": 96, "head_dim": 16, "num_experts": 4, "sliding_window": 6,
    "rope_scaling": null)";

RunConfig run_in(const std::string& precision, const std::filesystem::path& folder,
                 const std::string& extra = kExperts) {
  RunConfig run = anabatic::testing::tiny_run(folder, extra);
  run.train.precision = precision;
  run.train.steps = 4;
  run.data.sequence_length = 32;
  run.train.output = folder / precision;
  return run;
}

struct Messages : RunListener {
  std::string all;
  void on_message(Severity, const std::string& text) override { all += text + "\n"; }
};

std::vector<nlohmann::json> metrics_of(const RunConfig& run) {
  return anabatic::testing::json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl");
}

TEST(Fp16Training, FollowsTheLossesOfBf16) {
  for (const char* extra : {kExperts, kDense, kLatent, kBiased}) {
    const TemporaryDirectory folder;
    std::vector<double> wants;
    for (const char* precision : {"bf16", "fp16", "mixed"}) {
      SCOPED_TRACE(std::string(precision) + " " + extra);
      RunConfig run = run_in(precision, folder.path(), extra);
      run.train.steps = anabatic::testing::kIsSanitized ? 2 : extra == kExperts ? 30 : 6;
      Trainer(run).train();
      const std::vector<double> got = losses_of(run);
      for (const nlohmann::json& line : metrics_of(run))
        EXPECT_EQ(line.value("loss_scale", 0.0), run.train.precision == "bf16" ? 0.0 : 65536.0);
      if (wants.empty()) wants = got;
      ASSERT_EQ(got.size(), wants.size());
      EXPECT_EQ(got == wants, run.train.precision == "bf16");
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(std::abs(got[i] - wants[i]),
                  anabatic::testing::loss_tolerance(wants[i], DType::kBFloat16))
            << "step " << i;
    }
  }
}

TEST(Fp16Training, HasEqualBitsHoweverItIsPlanned) {
  for (const char* precision : {"fp16", "mixed"}) {
    const TemporaryDirectory folder;
    const RunConfig base = run_in(precision, folder.path());
    const std::string want = trained_bytes(base);
    for (const auto& [name, change] : anabatic::testing::plan_changes()) {
      // fp16 has no lower 16 bits to store.
      if (name == "parameters on disk" && base.train.precision == "fp16") continue;
      SCOPED_TRACE(std::string(precision) + " " + name);
      RunConfig run = base;
      change(run);
      run.train.output = folder.path() / name;
      EXPECT_TRUE(trained_bytes(run) == want);
    }
  }
}

// A third of the frame has to go, and is recomputed.
TEST(Fp16Training, FitsASmallerBudgetWithEqualBits) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "the peak is at no value that can be computed again";
  for (const char* precision : {"fp16", "mixed"}) {
    SCOPED_TRACE(precision);
    const TemporaryDirectory folder;
    RunConfig run = run_in(precision, folder.path());
    run.data.sequence_length = 256;
    run.train.steps = 2;
    const std::string want = trained_bytes(run);
    EXPECT_TRUE(trained_bytes(recomputing(run, folder.path())) == want);
  }
}

TEST(Fp16Training, ResumesWithEqualBits) {
  for (const char* precision : {"fp16", "mixed"}) {
    SCOPED_TRACE(precision);
    const TemporaryDirectory folder;
    RunConfig run = run_in(precision, folder.path());
    run.optimizer.schedule = "constant";
    const std::string want = trained_bytes(run);
    run.train.output = folder.path() / "parts";
    for (const std::int64_t steps : {1, 3}) {
      run.train.steps = steps;
      Trainer(run).train();
    }
    run.train.steps = 4;
    EXPECT_TRUE(trained_bytes(run) == want);
  }
}

TEST(Fp16Training, MayTakeOverARunInBf16AndGiveItBack) {
  const TemporaryDirectory folder;
  RunConfig run = run_in("bf16", folder.path());
  run.train.output = folder.path() / "run";
  run.optimizer.schedule = "constant";
  std::string before = "bf16";
  std::int64_t steps = 0;
  for (const char* precision : {"bf16", "fp16", "mixed", "bf16"}) {
    run.train.precision = precision;
    run.train.steps = steps += 2;
    Messages messages;
    Trainer(run, messages).train();
    if (precision != before) {
      EXPECT_THAT(messages.all, HasSubstr("train.precision is " + run.train.precision +
                                          " from here on; the checkpoint has " + before));
    }
    before = precision;
  }
  EXPECT_EQ(losses_of(run).size(), 8u);
}

TEST(Fp16Training, SaysWhatTheProductsRunIn) {
  const TemporaryDirectory folder;
  RunConfig run = run_in("mixed", folder.path());
  run.train.steps = 1;
  Messages messages;
  Trainer(run, messages).train();
  EXPECT_THAT(messages.all,
              HasSubstr("train.precision: mixed stores fp16 and computes with it in fp32: "
                        "this CPU has no kernels for fp16 products"));
}

TEST(Fp16Training, TakesLessMemoryThanFp32) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "no packing takes the place of another copy of a weight";
  const TemporaryDirectory folder;
  const auto frame_of = [&](const char* precision) {
    RunConfig run = run_in(precision, folder.path());
    run.data.sequence_length = 256;
    return anabatic::testing::plan_of(run).budgeted.plan.training.plan.peak_bytes();
  };
  const std::int64_t fp32 = frame_of("fp32"), fp16 = frame_of("fp16"), mixed = frame_of("mixed"),
                     bf16 = frame_of("bf16");
  EXPECT_LT(fp16, fp32);
  EXPECT_LT(mixed, fp32);
  EXPECT_LE(bf16, mixed);
}

TEST(Fp16Training, RefusesWhatHasNoFormInIt) {
  const auto problems = [](const char* precision, Overrides overrides) {
    overrides["train.precision"] = {precision};
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  for (const char* precision : {"fp16", "mixed"}) {
    const std::string got = std::string("got ") + precision;
    EXPECT_THAT(problems(precision, {{"lora.targets", {"all"}}}),
                HasSubstr("train.precision: expected bf16 with lora, " + got));
    EXPECT_THAT(problems(precision, {{"train.objective", {"dpo"}}}),
                HasSubstr("train.precision: expected bf16 with train.objective: dpo, " + got));
    EXPECT_THAT(problems(precision, {{"memory.compress", {"int8"}}}),
                HasSubstr("train.precision: expected bf16 with memory.compress, " + got));
    EXPECT_THAT(problems(precision, {{"parallel.expert", {"2"}}}),
                HasSubstr("train.precision: expected bf16 with parallel.expert, " + got));
    EXPECT_THAT(
        problems(precision, {{"quantization.enable", {"true"}}}),
        HasSubstr("train.precision: expected bf16, fp32 or int8 with quantization, " + got));
    EXPECT_THAT(problems(precision, {{"precision.keep", {"head=bf16"}}}),
                HasSubstr("precision.keep: expected fp32 for 'head' with train.precision: "));
    EXPECT_THAT(problems(precision, {{"optimizer.update", {"in_backward"}}}),
                HasSubstr("precision.loss_scale: expected a number with optimizer.update: "
                          "in_backward, got dynamic"));
    EXPECT_EQ(loss_scale_of(load_run_config("", {{"train.precision", {precision}}})),
              RunConfig::Precision::kDynamic);
  }
  EXPECT_THAT(problems("fp16", {{"memory.masters", {"disk"}}}),
              HasSubstr("expected memory.optimizer_state: disk or auto and train.precision: bf16, "
                        "got auto and fp16"));
}

TEST(Fp16Training, KeepsUnitsInFp32) {
  for (const char* precision : {"fp16", "mixed"}) {
    const TemporaryDirectory folder;
    RunConfig run = run_in(precision, folder.path());
    Trainer(run).train();
    const std::vector<double> plain = losses_of(run);
    run.precision.keep = {{"experts.down", "fp32"}, {"head", "fp32"}};
    run.train.output = folder.path() / "kept";
    Trainer(run).train();
    const std::vector<double> kept = losses_of(run);
    EXPECT_NE(kept, plain);
    for (std::size_t i = 0; i < kept.size(); ++i)
      EXPECT_LE(std::abs(kept[i] - plain[i]),
                anabatic::testing::loss_tolerance(plain[i], DType::kBFloat16));
  }
}

}  // namespace
}  // namespace anabatic::train
