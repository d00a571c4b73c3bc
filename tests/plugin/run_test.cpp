// SPDX-License-Identifier: Apache-2.0
// Runs with plugins: ops of a model replaced, kernels for ops of the engine, and what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "anabatic/error.h"
#include "base/log.h"
#include "lower/compile.h"
#include "support/run_binary.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/checkpoint/run_start.h"
#include "train/model_session.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using testing::checkpoint_bytes;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::json_lines;
using ::testing::Not;
using testing::parity_bounds;
using testing::TemporaryDirectory;
using testing::tiny_run;

const std::string kPlugin = std::string(ANABATIC_TEST_PLUGINS) + "model_ops.so";

RunConfig run_with(const std::filesystem::path& folder,
                   const std::vector<plugin::Replacement>& replace) {
  RunConfig run = tiny_run(folder);
  run.model.plugins = {kPlugin};
  run.model.replace = replace;
  run.train.steps = 3;
  run.train.gradient_accumulation_steps = 2;
  run.compiler.poison = true;
  return run;
}

std::vector<double> losses_of(const RunConfig& run) {
  (void)Trainer(run).train();
  std::vector<double> losses;
  for (const auto& line : json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl"))
    if (line.contains("loss")) losses.push_back(line["loss"]);
  return losses;
}

void expect_equal_losses(const std::vector<double>& got, const std::vector<double>& want,
                         DType dtype) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_FALSE(want.empty());
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(std::abs(got[i] - want[i]), parity_bounds(2, 16, dtype).logits) << "step " << i;
}

// Replaces ops of the tiny Mixtral, by precision.
class Replaced : public ::testing::TestWithParam<const char*> {
 protected:
  void expect_same_training(const std::vector<plugin::Replacement>& replace) {
    const TemporaryDirectory one, other;
    RunConfig plain = run_with(one.path(), {}), replaced = run_with(other.path(), replace);
    plain.model.plugins.clear();
    plain.train.precision = replaced.train.precision = GetParam();
    expect_equal_losses(losses_of(replaced), losses_of(plain),
                        GetParam() == std::string("bf16") ? DType::kBFloat16 : DType::kFloat32);
  }
};

TEST_P(Replaced, ActivationTrainsAlike) {
  expect_same_training({{"experts", "swiglu", "my_swiglu"}});
}

TEST_P(Replaced, ActivationInFp32TrainsAlike) {
  expect_same_training({{"experts", "swiglu", "fp32_swiglu"}});
}

TEST_P(Replaced, NormWithItsWeightTrainsAlike) {
  expect_same_training({{"attention", "rms_norm", "my_norm"}});
}

INSTANTIATE_TEST_SUITE_P(Precisions, Replaced, ::testing::Values("fp32", "bf16"));

const std::vector<plugin::Replacement> kBoth{{"experts", "swiglu", "my_swiglu"},
                                             {"attention", "rms_norm", "my_norm"}};

TEST(PluginRun, HasEqualBitsForAnyThreadsAndWhateverIsRecomputed) {
  std::string want;
  for (const int variant : {0, 1, 2, 3}) {
    const TemporaryDirectory folder;
    RunConfig run = run_with(folder.path(), kBoth);
    if (variant == 1) run.device.threads = 1;
    if (variant == 2) run.memory.recompute = {"experts"};
    if (variant == 3) run.optimizer.update = "in_backward";
    if (variant == 3) run.optimizer.clip_grad_norm = 0;
    const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (variant == 3) continue;  // whose clipping is another
    if (want.empty()) want = bytes;
    EXPECT_EQ(bytes == want, true) << variant;
  }
}

TEST(PluginRun, RefusesToGoOnWithOtherOps) {
  const TemporaryDirectory folder;
  RunConfig run = run_with(folder.path(), kBoth);
  run.train.steps = 1;
  (void)Trainer(run).train();
  run.train.steps = 2;
  run.model.replace.pop_back();
  try {
    (void)Trainer(run).train();
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.replace"));
  }
}

struct Refusal {
  plugin::Replacement replacement;
  const char* message;
};

TEST(PluginRun, RefusesWhatDoesNotFit) {
  const TemporaryDirectory folder;
  const Refusal refusals[] = {
      {{"experts", "swiglu", "my_swigul"},
       "[model.replace] {segment: experts, op: swiglu, with: my_swigul}: no plugin has an op "
       "my_swigul; did you mean my_swiglu?"},
      {{"mlp", "swiglu", "my_swiglu"},
       "[model.replace] {segment: mlp, op: swiglu, with: my_swiglu}: no node of the model is such "
       "an op; the model has the segments attention, combine, dispatch, embedding, experts, head, "
       "loss, router"},
      {{"experts", "gelu", "my_swiglu"},
       "[model.replace] {segment: experts, op: gelu, with: my_swiglu}: no node of the model is "
       "such an op; segment experts has the ops grouped_linear, swiglu"},
      {{"experts", "swiglu", "forward_only"},
       "[model.replace] {segment: experts, op: swiglu, with: forward_only}: forward_only of "
       "model_ops.so has no backward"},
      {{"attention", "rms_norm", "bare_norm"},
       "[model.replace] {segment: attention, op: rms_norm, with: bare_norm}: rms_norm has the "
       "attribute epsilon = 1e-05, which bare_norm has not"},
      {{"experts", "swiglu", "my_norm"},
       "[model.replace] {segment: experts, op: swiglu, with: my_norm}: [my_norm] expected weight "
       "[H], got f32[64,24]"},
      {{"experts", "swiglu", "column"},
       "[model.replace] {segment: experts, op: swiglu, with: column}: swiglu gives f32[64,24], "
       "column gives f32[64,1]"},
  };
  for (const Refusal& refusal : refusals) {
    const RunConfig run = run_with(folder.path(), {refusal.replacement});
    try {
      (void)Trainer(run).train();
      FAIL() << refusal.message;
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), refusal.message);
    }
  }
}

TEST(PluginRun, AsksKernelsOfPluginsFirst) {
  const TemporaryDirectory one, other;
  RunConfig plain = run_with(one.path(), {}), with_kernel = run_with(other.path(), {});
  plain.model.plugins.clear();
  for (RunConfig* run : {&plain, &with_kernel})
    run->compiler.disable_passes = {"fuse_activation", "move_router_weight"};
  ModelSession session(with_kernel, false);
  const auto bound = session.bind(
      {.name = "gradients", .build = {.num_tokens = 16}, .training = true, .with_update = false});
  std::vector<std::string> rows;
  for (const runtime::Call& call : bound->compiled.program.calls)
    if (call.kernel->op == "activation") rows.emplace_back(call.kernel->name);
  EXPECT_EQ(rows, std::vector<std::string>(2, "plugin:my_activation"));
  expect_equal_losses(losses_of(with_kernel), losses_of(plain), DType::kFloat32);
}

TEST(PluginRun, SaysWhatAModelWasTrainedWith) {
  const TemporaryDirectory folder;
  RunConfig run = run_with(folder.path(), kBoth);
  run.train.steps = 1;
  run.model.path = Trainer(run).train().checkpoint.string();
  run.model.init = "pretrained";
  run.model.replace.pop_back();
  std::string said;
  const LogScope messages([&](Severity, const std::string& text) { said += text + "\n"; });
  const ModelSession session(run, false);
  EXPECT_THAT(said, HasSubstr("trained with model.replace {segment: experts, op: swiglu, with: "
                              "my_swiglu}, {segment: attention, op: rms_norm, with: my_norm}; this "
                              "run has {segment: experts, op: swiglu, with: my_swiglu}"));
  said.clear();
  run.model.replace = kBoth;
  const ModelSession same(run, false);
  EXPECT_EQ(said.find("model.replace"), std::string::npos) << said;
}

TEST(PluginRun, SaysThatAPluginIsAnotherFile) {
  const TemporaryDirectory folder;
  RunConfig run = run_with(folder.path(), kBoth);
  const std::filesystem::path copy = folder.path() / "model_ops.so";
  std::filesystem::copy_file(kPlugin, copy);
  run.model.plugins = {copy.string()};
  run.train.steps = 1;
  (void)Trainer(run).train();
  std::ofstream(copy, std::ios::app) << "another build";
  EXPECT_THAT(begin_run(run).messages,
              Contains(HasSubstr("plugins are not the files that they were at that checkpoint:\n  "
                                 "model_ops.so: the checkpoint has")));
}

std::vector<std::string> arguments(const std::filesystem::path& folder, const std::string& with) {
  const RunConfig run = tiny_run(folder);
  return {"train",
          "--model.path",
          run.model.path,
          "--model.init",
          "random",
          "--data.train",
          run.data.train[0],
          "--data.sequence_length",
          "16",
          "--train.micro_batch_size",
          "2",
          "--train.steps",
          "2",
          "--train.precision",
          "fp32",
          "--train.output",
          (folder / "out").string(),
          "--device.threads",
          "2",
          "--memory.budget",
          "none",
          "--plugin",
          kPlugin,
          "--model.replace",
          "{segment: experts, op: swiglu, with: " + with + "}"};
}

TEST(PluginRun, TrainsOnSeveralRanks) {
  const TemporaryDirectory folder;
  std::vector<std::string> words = arguments(folder.path(), "my_swiglu");
  words.insert(words.end(), {"--parallel.local_ranks", "2", "--parallel.expert", "2"});
  const testing::Outcome outcome = testing::run_binary(words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(PluginRun, NamesPluginOpAndNodeOfWhatEndsTheProcess) {
  for (const auto& [op, end] : std::initializer_list<std::pair<std::string, std::string>>{
           {"crashing", "crashed with SIGSEGV"},
           {"overflowing", "crashed with SIGSEGV"},
           {"exiting", "called exit"}}) {
    const TemporaryDirectory folder;
    const testing::Outcome outcome = testing::run_binary(arguments(folder.path(), op));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("error: [plugin] model_ops.so: backward of op " + op + " " +
                                       end + " in node layers.1.experts " + op +
                                       "_gradient backward_input; the process ends\n"));
  }
}

TEST(PluginRun, WarnsOfAKernelThatIsNeverAsked) {
  const TemporaryDirectory folder;
  std::vector<std::string> words = arguments(folder.path(), "my_swiglu");
  words[0] = "plan";
  words.resize(words.size() - 2);  // without model.replace
  constexpr const char* kWarning =
      "[plugin] model_ops.so: no op of this run is `activation`, so the kernel "
      "plugin:my_activation is never asked; --compiler.dump DIR writes the ops of a step\n";
  if (testing::has_pass("fuse_activation")) {
    EXPECT_THAT(testing::run_binary(words).err, HasSubstr(kWarning));
  }
  words.insert(words.end(), {"--fusions.fuse_activation", "off"});
  EXPECT_THAT(testing::run_binary(words).err, Not(HasSubstr("is never asked")));
}

TEST(PluginRun, NamesPluginOpAndNodeOfAFailure) {
  const TemporaryDirectory folder;
  const testing::Outcome outcome = testing::run_binary(arguments(folder.path(), "failing"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("error: [failing] layers.0.experts failing forward in model_ops.so "
                        "failed: not today"));
}

}  // namespace
}  // namespace anabatic::train
