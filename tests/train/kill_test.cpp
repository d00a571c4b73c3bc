// SPDX-License-Identifier: Apache-2.0
// The binary's training run, killed and interrupted: what it leaves is whole, and the same command
// ends with the bits of an unbroken run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "base/json.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "support/run_binary.h"
#include "train/checkpoint/checkpoint_directory.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::json_lines;
using anabatic::testing::Outcome;
using anabatic::testing::Process;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 16;

fs::path write_run(const TemporaryDirectory& folder, std::int64_t steps, std::int64_t save_every,
                   const char* tier = "resident") {
  RunConfig run = tiny_run(folder.path());
  run.train.steps = steps;
  run.train.save_every = save_every;
  run.train.precision = "bf16";
  run.memory.optimizer_state = tier;
  run.train.gradient_accumulation_steps = 2;
  const fs::path file = folder.path() / "run.yaml";
  write_file_atomically(file, to_yaml(run));
  return file;
}

void expect_equal_runs(const fs::path& got, const fs::path& want) {
  const auto last = latest_checkpoint(got), wanted = latest_checkpoint(want);
  ASSERT_TRUE(last && wanted);
  EXPECT_EQ(last->filename(), wanted->filename());
  EXPECT_TRUE(checkpoint_bytes(*last) == checkpoint_bytes(*wanted));
  const auto a = json_lines(got / "metrics.jsonl"), b = json_lines(want / "metrics.jsonl");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]["step"], i + 1);
    for (const char* key : {"loss", "aux_loss", "grad_norm", "learning_rate", "epoch", "tokens"})
      EXPECT_EQ(a[i][key], b[i][key]) << key << " of step " << i + 1;
  }
}

void kill_and_go_on(const char* tier, int num_kills) {
  const TemporaryDirectory whole_folder, folder;
  const auto begin = std::chrono::steady_clock::now();
  const Outcome whole =
      anabatic::testing::run_binary({"train", write_run(whole_folder, kSteps, 1)});
  const auto time = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(whole.exit_code, 0) << whole.err;

  const fs::path config = write_run(folder, kSteps, 1, tier), output = folder.path() / "run";
  std::mt19937_64 random(5);
  bool saw_checkpoint = false;
  for (int kill = 0; kill < num_kills; ++kill) {
    Process process({"train", config});
    // Anywhere from the first file to a little after the last one of what is left.
    std::this_thread::sleep_for(time * std::uniform_real_distribution(0.2, 0.9)(random));
    // On a machine that others slow down the last one waits for a checkpoint to lie there.
    for (int i = 0; kill + 1 == num_kills && i < 2000 && !latest_checkpoint(output); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    process.signal(SIGKILL);
    process.wait();
    const auto latest = latest_checkpoint(output);
    saw_checkpoint = saw_checkpoint || latest;
    if (!latest) continue;
    for (const char* file : {"model.safetensors", "training_state.safetensors"})
      EXPECT_NO_THROW(io::SafetensorsDirectory::open(*latest / file)) << *latest;
    for (const char* file : {"config.json", "training_state.json", "run_config.yaml"})
      EXPECT_TRUE(fs::exists(*latest / file)) << *latest << file;
  }
  EXPECT_TRUE(saw_checkpoint);
  const Outcome last = anabatic::testing::run_binary({"train", config});
  EXPECT_EQ(last.exit_code, 0) << last.err;
  expect_equal_runs(output, whole_folder.path() / "run");
}

TEST(Kill, LeavesAWholeCheckpointAndTheSameCommandGoesOnBitForBit) {
  kill_and_go_on("resident", 6);
}

// Against an unbroken run with resident moments; the scratch file has no name to leave behind.
TEST(Kill, OfARunWithMomentsOnDiskDoesToo) { kill_and_go_on("disk", 4); }

void wait_for_step(const fs::path& output, std::size_t step) {
  for (int i = 0; i < 12000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (fs::exists(output / "metrics.jsonl") &&
        std::ranges::count(read_file(output / "metrics.jsonl"), '\n') >=
            static_cast<std::ptrdiff_t>(step))
      return;
  }
  FAIL() << "no step " << step << " in two minutes";
}

TEST(Interrupt, FinishesTheStepSavesAndSaysHowToGoOn) {
  const TemporaryDirectory folder;
  const fs::path config = write_run(folder, 1000000, 0), output = folder.path() / "run";
  std::size_t step = 0;
  for (const int signal : {SIGTERM, SIGINT}) {
    Process process({"train", config});
    wait_for_step(output, step + 3);
    process.signal(signal);
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("the same command resumes from"));
    const auto latest = latest_checkpoint(output);
    ASSERT_TRUE(latest);
    const auto lines = json_lines(output / "metrics.jsonl");
    EXPECT_EQ(latest->filename(), checkpoint_name(static_cast<std::int64_t>(lines.size())));
    EXPECT_GE(lines.size(), step + 3);
    step = lines.size();
  }

  // An unbroken run of the same schedule, which saves at that step; it may end any time after.
  const TemporaryDirectory whole_folder;
  const fs::path whole = write_run(whole_folder, 1000000, static_cast<std::int64_t>(step));
  Process process({"train", whole});
  wait_for_step(whole_folder.path() / "run", step + 1);
  process.signal(SIGKILL);
  process.wait();
  const std::string name = checkpoint_name(static_cast<std::int64_t>(step));
  EXPECT_TRUE(checkpoint_bytes(output / name) ==
              checkpoint_bytes(whole_folder.path() / "run" / name));
}

}  // namespace
}  // namespace anabatic::train
