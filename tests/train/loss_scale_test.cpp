// SPDX-License-Identifier: Apache-2.0
// The scale of a step's loss: its rule, bits that it leaves alone, steps that overflow, resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "anabatic/session.h"
#include "base/log.h"
#include "base/text.h"
#include "io/checksums.h"
#include "support/error_message.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/loss_scale/loss_scaler.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::message_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::HasSubstr;

constexpr double kDynamic = RunConfig::Precision::kDynamic;

LossScaler dynamic_scaler(const LossScaleState& state = {}) { return LossScaler(state); }

void take(LossScaler& scaler, bool overflowed, int times = 1) {
  for (int i = 0; i < times; ++i) scaler.take(overflowed);
}

TEST(LossScaler, DoublesAfterCleanStepsAndHalvesWithEachSkip) {
  LossScaler scaler = dynamic_scaler();
  EXPECT_EQ(scaler.scale(), 65536);
  take(scaler, false, 1999);
  EXPECT_EQ(scaler.scale(), 65536);
  take(scaler, false);
  EXPECT_EQ(scaler.scale(), 131072);
  take(scaler, false, 1999);
  take(scaler, true);
  EXPECT_EQ(scaler.scale(), 65536);
  take(scaler, false, 1999);
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.update_of(6000), 5999);
}

TEST(LossScaler, DoesNotGrowBeyondFloat) {
  LossScaler scaler = dynamic_scaler({.scale = 0x1p127f});
  take(scaler, false, 2000);
  EXPECT_EQ(scaler.scale(), 0x1p127f);
  EXPECT_EQ(scaler.state().clean_steps, 0);
}

TEST(LossScaler, GivesUpBelowOneAndAfterTwentySkipsInARow) {
  LossScaler scaler = dynamic_scaler();
  take(scaler, true, 16);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.gives_up());
  take(scaler, true);
  EXPECT_TRUE(scaler.gives_up());
  LossScaler large = dynamic_scaler({.scale = 0x1p100f});
  take(large, true, 19);
  take(large, false);
  take(large, true, 19);
  EXPECT_FALSE(large.gives_up());
  take(large, true);
  EXPECT_TRUE(large.gives_up());
}

TEST(LossScaler, AConstantStaysAndCountsWhatWasSkippedBefore) {
  LossScaler scaler(512);
  EXPECT_FALSE(scaler.is_worth_saving());
  scaler.restore({.skipped = 3});
  take(scaler, true, 30);
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_FALSE(scaler.gives_up());
  EXPECT_EQ(scaler.update_of(10), 7);
  EXPECT_TRUE(scaler.is_worth_saving());
}

TEST(LossScaler, IsReadAsItWasWritten) {
  const LossScaleState state{.scale = 2, .clean_steps = 7, .skipped = 31, .skipped_in_row = 19};
  EXPECT_EQ(read_loss_scale(to_json(state)), state);
  EXPECT_EQ(read_loss_scale({}), LossScaleState{});
  for (const char* key : {"scale", "clean_steps", "skipped", "skipped_in_row"}) {
    Json json = to_json(state);
    json[key] = -1;
    EXPECT_THAT(message_of<InvalidArgument>([&] { read_loss_scale(json); }),
                HasSubstr(std::string("loss_scale: ") + key));
    json.erase(key);
    EXPECT_THAT(message_of<InvalidArgument>([&] { read_loss_scale(json); }), HasSubstr(key));
  }
}

RunConfig scaled_run(const std::filesystem::path& folder, double scale) {
  RunConfig run = anabatic::testing::tiny_run(folder);
  run.train.steps = 4;
  run.precision.loss_scale = scale;
  return run;
}

std::vector<nlohmann::json> metrics_of(const RunConfig& run) {
  return anabatic::testing::json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl");
}

// A power of two moves exponents alone, in each form of a step.
TEST(LossScale, APowerOfTwoChangesNoBit) {
  struct Form {
    const char* name;
    std::function<void(RunConfig&)> change;
  };
  const Form forms[]{
      {"fp32", [](RunConfig&) {}},
      {"bf16", [](RunConfig& run) { run.train.precision = "bf16"; }},
      {"bf16 moments",
       [](RunConfig& run) {
         run.train.precision = "bf16";
         run.optimizer.state_precision = "bf16";
       }},
      {"micro-batches and leaves",
       [](RunConfig& run) {
         run.train.gradient_accumulation_steps = 4;
         run.train.gradient_leaves = 2;
       }},
      {"updates in the backward",
       [](RunConfig& run) {
         run.train.gradient_accumulation_steps = 2;
         run.optimizer.update = "in_backward";
       }},
      {"recompute",
       [](RunConfig& run) {
         run.memory.recompute = {"attention", "experts"};
       }},
      {"logits are stored", [](RunConfig& run) { run.fusions.off.insert("fuse_head_loss"); }},
      {"ranks",
       [](RunConfig& run) {
         run.parallel.local_ranks = 2;
         run.parallel.optimizer = "sharded";
       }},
      {"an adapter",
       [](RunConfig& run) {
         run.lora.targets = {"all"};
         run.lora.rank = 4;
       }},
      {"without clipping", [](RunConfig& run) { run.optimizer.clip_grad_norm = 0; }}};
  const TemporaryDirectory folder;
  int number = 0;
  for (const Form& form : forms) {
    SCOPED_TRACE(form.name);
    std::string bytes;
    std::vector<nlohmann::json> norms;
    for (const double scale : {1.0, 1024.0}) {
      RunConfig run = scaled_run(folder.path(), scale);
      form.change(run);
      run.train.output = folder.path() / std::to_string(number++);
      const std::string got = trained_bytes(run);
      std::vector<nlohmann::json> got_norms;
      for (const nlohmann::json& line : metrics_of(run)) {
        got_norms.push_back(line["grad_norm"]);
        EXPECT_EQ(line.contains("loss_scale"), scale != 1);
      }
      if (scale == 1) {
        bytes = got;
        norms = got_norms;
      }
      EXPECT_TRUE(got == bytes);
      EXPECT_EQ(got_norms, norms);
    }
  }
}

TEST(LossScale, APowerOfTwoChangesNoBitOfInt8Products) {
  const TemporaryDirectory folder;
  RunConfig run = anabatic::testing::tiny_run(
      folder.path(), R"("hidden_size": 64, "intermediate_size": 96, "num_local_experts": 2)");
  run.data.sequence_length = 64;
  run.train.micro_batch_size = 4;
  run.train.steps = 2;
  run.train.precision = "int8";
  const std::string want = trained_bytes(run);
  run.precision.loss_scale = 1024;
  run.train.output = folder.path() / "scaled";
  EXPECT_TRUE(trained_bytes(run) == want);
}

// Its numbers in a checkpoint.
void edit_scale(const std::filesystem::path& checkpoint, float scale, int skipped_in_row = 0) {
  const std::filesystem::path file = checkpoint / kProgressFile;
  OrderedJson json = OrderedJson::parse(read_file(file, 1 << 20));
  json["loss_scale"]["scale"] = scale;
  json["loss_scale"]["skipped_in_row"] = skipped_in_row;
  write_file_atomically(file, dump_json(json));
  io::ChecksumManifest sums = io::read_checksums(checkpoint).value();
  sums[kProgressFile] = io::checksums_of(file);
  io::write_checksums(checkpoint, sums);
}

std::vector<double> scales_of(const RunConfig& run) {
  std::vector<double> scales;
  for (const nlohmann::json& line : metrics_of(run)) scales.push_back(line["loss_scale"]);
  return scales;
}
std::vector<bool> skips_of(const RunConfig& run) {
  std::vector<bool> skips;
  for (const nlohmann::json& line : metrics_of(run)) skips.push_back(line["skipped"]);
  return skips;
}

// Gradients of the loss times it overflow; those of 2^100 do not.
constexpr float kTooLarge = 0x1p110f;

TEST(LossScale, AStepThatOverflowsIsSkippedWholeAndTheNextOnesHaveLess) {
  const TemporaryDirectory folder;
  RunConfig run = scaled_run(folder.path(), kDynamic);
  run.train.steps = 1;
  run.train.save_every = 1;
  run.train.keep_last = 0;
  run.train.gradient_accumulation_steps = 2;
  const std::filesystem::path first = Trainer(run).train().checkpoint;
  edit_scale(first, kTooLarge);
  run.train.steps = 12;
  std::string log;
  {
    const LogScope scope([&](Severity, const std::string& line) { log += line + '\n'; });
    Trainer(run).train();
  }
  const std::vector<double> scales = scales_of(run);
  const std::vector<bool> skips = skips_of(run);
  ASSERT_EQ(skips.size(), 12u);
  EXPECT_FALSE(skips[0]);
  EXPECT_TRUE(skips[1]);
  EXPECT_NE(std::find(skips.begin() + 2, skips.end(), false), skips.end()) << log;
  const auto state_after = [&](std::size_t step) {
    return anabatic::testing::training_state(std::filesystem::path(run.train.output) /
                                             checkpoint_name(static_cast<std::int64_t>(step)));
  };
  double expected = kTooLarge;
  for (std::size_t i = 1; i < 12; ++i) {
    EXPECT_EQ(scales[i], expected);
    EXPECT_EQ(metrics_of(run)[i]["grad_norm"].is_null(), skips[i]);
    EXPECT_EQ(state_after(i + 1) == state_after(i), skips[i]) << "step " << i + 1;
    if (skips[i]) expected /= 2;
  }
  EXPECT_THAT(log, HasSubstr("step 2: a gradient is not finite with the loss times "));
}

// Gradients beyond fp16 are infinite there alone. Steps are skipped until they fit.
TEST(LossScale, GradientsInFp16OverflowWhereThoseInBf16DoNot) {
  constexpr float kScale = 0x1p30f;
  const TemporaryDirectory folder;
  for (const char* precision : {"bf16", "fp16", "mixed"}) {
    SCOPED_TRACE(precision);
    RunConfig run = scaled_run(folder.path(), kDynamic);
    run.train.precision = precision;
    run.train.output = folder.path() / precision;
    run.train.steps = 1;
    edit_scale(Trainer(run).train().checkpoint, kScale);
    run.train.steps = 24;
    Trainer(run).train();
    const std::vector<double> scales = scales_of(run);
    const std::vector<bool> skips = skips_of(run);
    double expected = kScale;
    for (std::size_t i = 1; i < skips.size(); ++i) {
      EXPECT_EQ(scales[i], expected) << i;
      if (skips[i]) expected /= 2;
    }
    EXPECT_EQ(skips[1], run.train.precision != "bf16");
    EXPECT_FALSE(skips.back());
    EXPECT_EQ(expected == kScale, run.train.precision == "bf16");
  }
}

TEST(LossScale, IsResumedWithEqualBits) {
  const TemporaryDirectory folder;
  RunConfig run = scaled_run(folder.path(), kDynamic);
  run.optimizer.schedule = "constant";
  const auto bytes_of = [&](const char* name, std::vector<std::int64_t> stops) {
    run.train.output = folder.path() / name;
    run.train.steps = 1;
    edit_scale(Trainer(run).train().checkpoint, kTooLarge);
    std::string bytes;
    for (const std::int64_t steps : stops) {
      run.train.steps = steps;
      bytes = trained_bytes(run);
    }
    return bytes;
  };
  const std::string want = bytes_of("whole", {9});
  const std::vector<double> scales = scales_of(run);
  EXPECT_TRUE(bytes_of("parts", {2, 3, 6, 9}) == want);
  EXPECT_EQ(scales_of(run), scales);
}

TEST(LossScale, RanksSkipTheSameSteps) {
  const TemporaryDirectory folder;
  RunConfig run = scaled_run(folder.path(), kDynamic);
  run.train.gradient_accumulation_steps = 2;
  run.train.gradient_leaves = 2;
  run.optimizer.schedule = "constant";
  const auto state_of = [&](const char* name) {
    run.train.output = folder.path() / name;
    run.train.steps = 1;
    edit_scale(Trainer(run).train().checkpoint, kTooLarge);
    run.train.steps = 8;
    return anabatic::testing::training_state(Trainer(run).train().checkpoint);
  };
  const auto want = state_of("one");
  const std::vector<double> scales = scales_of(run);
  run.train.gradient_accumulation_steps = 1;
  run.parallel.local_ranks = 2;
  EXPECT_EQ(state_of("two"), want);
  EXPECT_EQ(scales_of(run), scales);
  EXPECT_TRUE(skips_of(run)[1]);
}

TEST(LossScale, RanksGiveUpTogetherAndNameTheFirstCallThatOverflowed) {
  const TemporaryDirectory folder;
  RunConfig run = scaled_run(folder.path(), kDynamic);
  run.parallel.local_ranks = 2;
  run.train.steps = 1;
  edit_scale(Trainer(run).train().checkpoint, kTooLarge, 19);
  run.train.steps = 4;
  const std::string text = message_of<Error>([&] { Trainer(run).train(); });
  EXPECT_THAT(text, HasSubstr("step 2: a gradient is not finite with the loss times "));
  EXPECT_THAT(text, HasSubstr("20 steps in a row were skipped; first in layers."));
}

class ScaledSession : public ::testing::Test {
 protected:
  Session session(double scale) {
    RunConfig run = scaled_run(folder_.path(), scale);
    const std::filesystem::path file = folder_.path() / "run.yaml";
    write_file_atomically(file, to_yaml(run));
    return Session({}, file);
  }
  static std::vector<Sequence> batch(std::int32_t first) {
    Sequence made;
    for (std::int32_t i = 0; i < 16; ++i) made.tokens.push_back((first + 5 * i) % 97);
    return {made, made};
  }
  static std::vector<float> values(const Session& session, const std::string& state) {
    for (const StateInfo& info : session.states())
      if (info.name == state) {
        std::int64_t count = 1;
        for (const std::int64_t size : info.shape) count *= size;
        std::vector<float> result(static_cast<std::size_t>(count));
        session.read(state, 0, result);
        return result;
      }
    return {};
  }
  TemporaryDirectory folder_;
};

// Moments are corrected by the number of updates, so a skipped step must not count as one.
TEST_F(ScaledSession, AStepThatWasSkippedIsAsIfItHadNotBeen) {
  Session plain = session(1), scaled = session(kDynamic);
  const std::string checkpoint = scaled.save((folder_.path() / "saved").string());
  edit_scale(checkpoint, kTooLarge);
  scaled.restore(checkpoint);
  int num_skipped = 0;
  while (scaled.step(batch(7), 1e-2).is_skipped) ++num_skipped;
  EXPECT_GT(num_skipped, 0);
  plain.step(batch(7), 1e-2);
  for (int i = 0; i < 3; ++i) {
    const StepResult want = plain.step(batch(i), 1e-2), got = scaled.step(batch(i), 1e-2);
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.gradient_norm, want.gradient_norm);
    EXPECT_FALSE(want.loss_scale.has_value());
    EXPECT_EQ(got.loss_scale, std::ldexp(kTooLarge, -num_skipped));
    ASSERT_EQ(plain.gradient_norms().size(), scaled.gradient_norms().size());
    for (std::size_t n = 0; n < plain.gradient_norms().size(); ++n)
      EXPECT_EQ(scaled.gradient_norms()[n].norm, plain.gradient_norms()[n].norm);
  }
  for (const char* state : {"norm.weight", "embedding.weight", "layers.1.experts.down.weight"})
    EXPECT_EQ(values(scaled, state), values(plain, state)) << state;
}

TEST_F(ScaledSession, GivesUpAndNamesTheFirstCallThatOverflowed) {
  Session scaled = session(kDynamic);
  const std::vector<float> bad{std::numeric_limits<float>::infinity()};
  scaled.write("layers.1.mlp_norm.weight", 3, bad);
  const std::string text = message_of<Error>([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(scaled.step(batch(i), 1e-2).is_skipped);
  });
  EXPECT_THAT(text, HasSubstr("step 17: a gradient is not finite with the loss times 1, and "
                              "smaller scales do not help: 17 steps in a row were skipped; first "
                              "in layers.1"));
  EXPECT_THAT(text, HasSubstr("norm"));
}

TEST(LossScaleKeys, SayWhatTheyTake) {
  const auto problems = [](const Overrides& overrides) {
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  for (const char* value : {"0", "-4", "0.5", "half"})
    EXPECT_THAT(problems({{"precision.loss_scale", {value}}}),
                HasSubstr("precision.loss_scale: expected a number"));
  EXPECT_THAT(
      problems({{"precision.loss_scale", {"dynamic"}}, {"optimizer.update", {"in_backward"}}}),
      HasSubstr("precision.loss_scale: expected a number with optimizer.update: in_backward, got "
                "dynamic: a step could not be skipped"));
  EXPECT_EQ(loss_scale_of(load_run_config("", {})), 1);
  EXPECT_EQ(loss_scale_of(load_run_config("", {{"precision.loss_scale", {"dynamic"}}})), kDynamic);
}

TEST(LossScaleKeys, WarnOfANumberThatRounds) {
  std::string log;
  const LogScope scope([&](Severity, const std::string& line) { log += line; });
  RunConfig run;
  run.precision.loss_scale = 1000;
  EXPECT_EQ(make_loss_scaler(run).scale(), 1000);
  EXPECT_THAT(log, HasSubstr("precision.loss_scale: 1000 is no power of two, so it rounds "
                             "gradients; 1024 does not"));
  log.clear();
  run.precision.loss_scale = 2048;
  (void)make_loss_scaler(run);
  EXPECT_EQ(log, "");
}

}  // namespace
}  // namespace anabatic::train
