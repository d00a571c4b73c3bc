// SPDX-License-Identifier: Apache-2.0
// How a run stores the optimizer state, and when it updates: split parameters, moments in bf16 or 8
// bits, updates in the backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/checksums.h"
#include "io/safetensors.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;

std::vector<nlohmann::json> metrics_of(const RunConfig& run) {
  return anabatic::testing::json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl");
}

// Matrices large enough for moments in 8 bits, with odd sides.
constexpr const char* kLarge = "\"hidden_size\": 72, \"intermediate_size\": 41";

// As above, for parameters that are whole or split; in panels, and in rows with an embedding that
// has two readers.
TEST(OptimizerState, GivesEqualBitsWithParametersWholeOrInHalves) {
  for (const bool in_panels : {true, false}) {
    std::string whole;
    for (const bool in_halves : {false, true}) {
      const TemporaryDirectory folder;
      RunConfig run =
          tiny_run(folder.path(), in_panels ? "\"hidden_size\": 24, \"intermediate_size\": 21"
                                            : "\"tie_word_embeddings\": true");
      run.train.precision = "bf16";
      run.train.gradient_accumulation_steps = 2;
      run.train.validate_every = 2;
      run.train.save_every = 3;
      run.train.keep_last = 0;
      run.train.save_dtype = "fp32";
      run.data.validation = {
          anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
      const auto set_passes = [&](bool splits) {
        run.compiler.disable_passes.clear();
        if (!splits) run.compiler.disable_passes.emplace_back("split_parameters");
        if (!in_panels) run.compiler.disable_passes.emplace_back("panel_states");
        testing::apply_test_config(run);
      };
      set_passes(in_halves);
      const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
      if (!in_halves) whole = bytes;
      EXPECT_TRUE(bytes == whole) << in_panels;
      anabatic::testing::go_back_to(run.train.output, 3);
      set_passes(!in_halves);
      EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == whole)
          << in_panels << ", resumed";
    }
  }
}

std::vector<double> losses_of(const RunConfig& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line : metrics_of(run)) losses.push_back(line["loss"]);
  return losses;
}

// By the mean loss of the last 20 of 100 steps.
TEST(OptimizerState, LearnsAlikeWithMomentsInFewerBits) {
  if (anabatic::testing::kIsSanitized || testing::plans_trivially())
    GTEST_SKIP() << "what is learnt does not depend on them";
  std::vector<double> means;
  for (const char* precision : {"fp32", "bf16", "int8"}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), kLarge);
    run.train.precision = "bf16";
    run.train.steps = 100;
    run.optimizer.state_precision = precision;
    Trainer(run).train();
    const std::vector<double> losses = losses_of(run);
    ASSERT_EQ(losses.size(), 100u);
    double sum = 0;
    for (std::size_t i = 80; i < 100; ++i) sum += losses[i];
    EXPECT_LT(sum / 20, losses[0] - 1.0);
    means.push_back(sum / 20);
  }
  for (const std::size_t i : {1, 2}) {
    EXPECT_LE(std::abs(means[i] - means[0]), anabatic::testing::noisy_moments_tolerance(means[0]));
    EXPECT_NE(means[i], means[0]);
  }
}

void expect_equal_bits_in_any_form(const std::string& precision, const std::string& moments,
                                   const std::string& model) {
  std::string want;
  for (const int variant : {0, 1, 2, 3}) {
    if (anabatic::testing::kIsSanitized && variant % 2 != 0) continue;  // thread counts alone
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), model);
    run.train.precision = precision;
    run.optimizer.state_precision = moments;
    run.train.save_every = 3;
    run.train.keep_last = 0;
    run.device.threads = variant == 3 ? 3 : variant == 0 ? 1 : 2;
    if (variant == 2) run.compiler.disable_passes = {"panel_states", "split_parameters"};
    testing::apply_test_config(run);
    std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (variant == 0) want = bytes;
    EXPECT_TRUE(bytes == want) << precision << ", variant " << variant;
    anabatic::testing::go_back_to(run.train.output, 3);
    EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == want)
        << precision << ", variant " << variant << ", resumed";
  }
}

TEST(OptimizerState, ResumesMomentsInBf16BitForBitOnAnyThreadCountAndLayout) {
  for (const char* precision : {"fp32", "bf16"})
    expect_equal_bits_in_any_form(precision, "bf16",
                                  "\"hidden_size\": 24, \"intermediate_size\": 21");
}

TEST(OptimizerState, ResumesMomentsInEightBitsBitForBitOnAnyThreadCountAndLayout) {
  for (const char* precision : {"fp32", "bf16"})
    expect_equal_bits_in_any_form(precision, "int8", kLarge);
}

// Quantised values and scales of large matrices; f32 of embeddings, norms and small matrices.
TEST(OptimizerState, SavesMomentsInEightBitsAsCodesAndScales) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kLarge);
  run.train.precision = "bf16";
  run.optimizer.state_precision = "int8";
  const auto states = io::SafetensorsDirectory::open(Trainer(run).train().checkpoint /
                                                     "training_state.safetensors");
  int num_quantized = 0, num_f32 = 0;
  for (const std::string& name : states.names()) {
    if (!name.starts_with("second_moment.")) continue;
    const std::string parameter = name.substr(14);
    const io::TensorEntry& moment = *states.find(name);
    const std::int64_t count = static_cast<std::int64_t>(moment.data.size()) /
                               size_bytes(moment.dtype.value_or(DType::kFloat32));
    const bool is_quantized =
        count >= 4096 && moment.shape.size() > 1 && parameter != "embedding.weight";
    EXPECT_EQ(moment.dtype, is_quantized ? DType::kUInt8 : DType::kFloat32) << name;
    (is_quantized ? num_quantized : num_f32)++;
    const io::TensorEntry* scales = states.find("second_moment_scales." + parameter);
    ASSERT_EQ(scales != nullptr, is_quantized) << name;
    if (!is_quantized) continue;
    EXPECT_EQ(scales->dtype, DType::kFloat32);
    std::vector<std::int64_t> tiles = moment.shape;
    for (std::size_t axis = tiles.size() - 2; axis < tiles.size(); ++axis)
      tiles[axis] = (tiles[axis] + 15) / 16;
    EXPECT_EQ(scales->shape, tiles) << name;
    EXPECT_TRUE(std::any_of(moment.data.begin(), moment.data.end(),
                            [](std::byte code) { return code == std::byte{255}; }))
        << name << ": no element is the largest of its block";
  }
  EXPECT_GE(num_quantized, 8);
  EXPECT_GE(num_f32, 3);
}

// A run with moments in 8 bits, "resident" or on "disk".
RunConfig run_in_eight_bits(const TemporaryDirectory& folder, const char* tier) {
  RunConfig run = tiny_run(folder.path(), kLarge);
  run.train.precision = "bf16";
  run.optimizer.state_precision = "int8";
  run.memory.optimizer_state = tier;
  run.memory.swap_directory = folder.path() / "scratch";
  return run;
}

TEST(OptimizerState, HasEqualBitsWithMomentsInEightBitsOnDisk) {
  std::string want;
  for (const char* tier : {"resident", "disk"}) {
    const TemporaryDirectory folder;
    const RunConfig run = run_in_eight_bits(folder, tier);
    const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (want.empty()) want = bytes;
    EXPECT_TRUE(bytes == want) << tier;
  }
}

// Elements and scales go from a checkpoint of either tier to the disk.
TEST(OptimizerState, ResumesMomentsInEightBitsOnDiskBitForBit) {
  const TemporaryDirectory whole_folder;
  const RunConfig whole = run_in_eight_bits(whole_folder, "disk");
  const std::string want = checkpoint_bytes(Trainer(whole).train().checkpoint);
  for (const char* before : {"resident", "disk"}) {
    const TemporaryDirectory folder;
    RunConfig run = run_in_eight_bits(folder, before);
    run.train.save_every = 3;
    run.train.keep_last = 0;
    Trainer(run).train();
    anabatic::testing::go_back_to(run.train.output, 3);
    run.memory.optimizer_state = "disk";
    const TrainResult resumed = Trainer(run).train();
    EXPECT_NE(resumed.disk, "") << "no moments are on disk";
    EXPECT_TRUE(checkpoint_bytes(resumed.checkpoint) == want) << before;
  }
}

TEST(OptimizerState, UpdatesInTheBackwardAsAfterItWhereNothingIsClipped) {
  for (const auto& [precision, micro_batches] :
       {std::pair{"fp32", 1}, {"fp32", 3}, {"bf16", 1}, {"bf16", 2}}) {
    std::string after;
    for (const char* update : {"after_backward", "in_backward"}) {
      const TemporaryDirectory folder;
      RunConfig run = tiny_run(folder.path(), "\"tie_word_embeddings\": true");
      run.train.precision = precision;
      run.train.gradient_accumulation_steps = micro_batches;
      run.optimizer.clip_grad_norm = 0;
      run.optimizer.update = update;
      run.data.validation = {
          anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
      const TrainResult result = Trainer(run).train();
      // Without the norm's state, which only one of them has.
      std::string bytes;
      for (const char* file : {"model.safetensors"}) bytes += read_file(result.checkpoint / file);
      if (after.empty()) after = bytes;
      EXPECT_TRUE(bytes == after) << precision << ", micro-batches " << micro_batches;
    }
  }
}

// Steps of one sample: the first is not clipped, the others by the norm that metrics show for the
// step before. With a rate of one and no momentum the first moment is the clipped gradient.
void expect_clipped_by_the_step_before(int micro_batches) {
  SCOPED_TRACE(micro_batches);
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.gradient_accumulation_steps = micro_batches;
  run.optimizer.update = "in_backward";
  run.optimizer.betas = {0.0, 0.0};
  run.optimizer.learning_rate = run.optimizer.min_learning_rate = 0;
  run.optimizer.clip_grad_norm = 0.25;
  run.train.save_every = 1;
  run.train.keep_last = 0;
  run.train.steps = 4;
  Trainer(run).train();
  std::vector<double> norms;
  for (const nlohmann::json& line : metrics_of(run)) norms.push_back(line["grad_norm"]);
  ASSERT_EQ(norms.size(), 4u);
  for (std::size_t step = 1; step <= 4; ++step) {
    const auto states = io::SafetensorsDirectory::open(
        std::filesystem::path(run.train.output) / checkpoint_name(static_cast<std::int64_t>(step)) /
        "training_state.safetensors");
    double sum = 0, kept = 0;
    for (const std::string& name : states.names()) {
      const auto bytes = states.find(name)->data;
      const std::span values(reinterpret_cast<const float*>(bytes.data()),
                             bytes.size() / sizeof(float));
      if (name == "previous_grad_norm") kept = values[0];
      if (!name.starts_with("first_moment.")) continue;
      for (const float value : values) sum += static_cast<double>(value) * value;
    }
    const double clip = step == 1 ? 1.0 : std::min(1.0, 0.25 / (norms[step - 2] + 1e-6));
    EXPECT_LT(step == 1 ? 0.0 : clip, 1.0) << "the test must clip";
    const double want = clip * norms[step - 1];
    EXPECT_LE(std::abs(std::sqrt(sum) - want),
              anabatic::testing::agreement_tolerance(want, DType::kFloat32))
        << "step " << step;
    EXPECT_LE(std::abs(kept - norms[step - 1]),
              anabatic::testing::agreement_tolerance(kept, DType::kFloat32));
  }
}

TEST(OptimizerState, ClipsInTheBackwardByTheNormOfTheStepBefore) {
  for (const int micro_batches : {1, 2}) expect_clipped_by_the_step_before(micro_batches);
}

void expect_equal_resumes_in_backward(const std::string& moments) {
  std::string want;
  for (const char* planners : {"given", "trivial"}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), moments == "int8" ? kLarge : "");
    run.train.precision = "bf16";
    run.optimizer.update = "in_backward";
    run.optimizer.state_precision = moments;
    run.optimizer.clip_grad_norm = 0.5;
    run.train.gradient_accumulation_steps = moments == "int8" ? 2 : 1;
    run.train.save_every = 3;
    run.train.keep_last = 0;
    run.compiler.trivial_planners = run.compiler.poison = planners == std::string("trivial");
    testing::apply_test_config(run);
    const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (want.empty()) want = bytes;
    EXPECT_TRUE(bytes == want) << planners;
    anabatic::testing::go_back_to(run.train.output, 3);
    EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == want) << planners;
  }
}

TEST(OptimizerState, ResumesUpdatesInTheBackwardBitForBit) {
  for (const char* moments : {"bf16", "int8"}) {
    SCOPED_TRACE(moments);
    expect_equal_resumes_in_backward(moments);
  }
}

TEST(OptimizerState, RefusesToResumeOtherMoments) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  Trainer(run).train();
  run.optimizer.state_precision = "bf16";
  run.optimizer.update = "in_backward";
  try {
    Trainer trainer(run);
    FAIL() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("optimizer.state_precision: the checkpoint has fp32, this run bf16"));
    EXPECT_THAT(error.what(), HasSubstr("optimizer.update: the checkpoint has after_backward"));
  }
}

// Sets every element of an f32 tensor in a file of a checkpoint, as if it had been saved so.
void overwrite(const std::filesystem::path& file, const std::string& tensor, float value) {
  std::string bytes = read_file(file);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const nlohmann::json entry = parse_json(bytes.substr(sizeof header, header))[tensor];
  const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
  for (std::size_t at = begin; at < end; at += sizeof value)
    std::memcpy(bytes.data() + sizeof header + header + at, &value, sizeof value);
  write_file_atomically(file, bytes);
  io::ChecksumManifest sums = io::read_checksums(file.parent_path()).value();
  io::Checksum sum;
  sum.add(std::as_bytes(std::span(bytes)).subspan(sizeof header + header + begin, end - begin));
  sums[file.filename().string()].tensors[tensor] = sum.value();
  io::write_checksums(file.parent_path(), sums);
}

// The loss is finite; the router's z-loss, which is no part of what is checked after the forward,
// has a gradient that overflows on its way through the router's weight.
TEST(OptimizerState, StopsInTheBackwardOnANonFiniteGradientAndKeepsTheLastCheckpoint) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.save_every = 1;
  run.train.steps = 2;
  run.train.router_z_loss_coef = 1e6;
  run.optimizer.update = "in_backward";
  const std::filesystem::path checkpoint = Trainer(run).train().checkpoint;
  overwrite(checkpoint / "training_state.safetensors", "layers.1.router.weight", 1e30f);
  const std::string before = checkpoint_bytes(checkpoint);
  run.train.steps = 4;
  try {
    Trainer(run).train();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[train] step 3: the gradient's norm is"));
    EXPECT_THAT(error.what(), HasSubstr("the backward had updated weights by then"));
  }
  EXPECT_EQ(latest_checkpoint(run.train.output), checkpoint);
  EXPECT_TRUE(checkpoint_bytes(checkpoint) == before);
}

}  // namespace
}  // namespace anabatic::train
