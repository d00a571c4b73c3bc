// SPDX-License-Identifier: Apache-2.0
// Runs whose parameters are on disk between their readers: the bits of resident runs in steps,
// validation, import and resume, and disks that fail.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "support/faulty_device.h"
#include "support/planned_run.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/state_rows.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::Fault;
using anabatic::testing::json_lines;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::with_fault;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Wide enough that experts, attention, embedding and head go to disk; odd, so that panels have
// ends.
constexpr const char* kWide = "\"hidden_size\": 96, \"intermediate_size\": 129";

RunConfig run_in(const TemporaryDirectory& folder, const char* precision) {
  RunConfig run = tiny_run(folder.path(), kWide);
  run.train.precision = precision;
  run.train.steps = 4;
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  run.train.validate_every = 2;
  return run;
}

void put_on_disk(RunConfig& run) {
  run.memory.optimizer_state = "disk";
  run.memory.masters = run.train.precision == "bf16" ? "disk" : "auto";
  run.memory.parameters = "disk";
  run.memory.swap_slice = 16384;
}

void put_in_memory(RunConfig& run) { run.memory = {}; }

// Whether what the model reads is on disk; trivial planners let it stay.
void expect_on_disk(const RunConfig& run) {
  if (testing::plans_trivially()) return;
  EXPECT_THAT(read_file(fs::path(run.train.output) / "plan.txt"),
              HasSubstr("of the optimizer's state and parameters"));
}

void expect_equal_runs(const RunConfig& got, const RunConfig& want) {
  EXPECT_TRUE(checkpoint_bytes(*latest_checkpoint(got.train.output)) ==
              checkpoint_bytes(*latest_checkpoint(want.train.output)));
  for (const char* file : {"metrics.jsonl", "validation.jsonl"}) {
    const auto a = json_lines(fs::path(got.train.output) / file),
               b = json_lines(fs::path(want.train.output) / file);
    ASSERT_EQ(a.size(), b.size()) << file;
    ASSERT_FALSE(a.empty()) << file;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (const char* key : {"step", "loss", "grad_norm"})
        EXPECT_EQ(a[i].value(key, Json()), b[i].value(key, Json())) << file << " " << i;
  }
}

TEST(DiskParameters, TrainAndValidateBitForBit) {
  for (const char* precision : {"fp32", "bf16"})
    for (const auto& [in_backward, micro_batches] : {std::pair{false, 2}, {true, 1}, {true, 2}}) {
      SCOPED_TRACE(fmt::format("{} in_backward {} of {}", precision, in_backward, micro_batches));
      const TemporaryDirectory want_folder, got_folder;
      RunConfig want = run_in(want_folder, precision), got = run_in(got_folder, precision);
      for (RunConfig* run : {&want, &got}) {
        if (in_backward) run->optimizer.update = "in_backward";
        run->train.gradient_accumulation_steps = micro_batches;
      }
      put_on_disk(got);
      got.compiler.poison = true;
      Trainer(want).train();
      Trainer(got).train();
      expect_on_disk(got);
      expect_equal_runs(got, want);
    }
}

// The trivial planners keep parameters in memory, and every reader's copy is a call.
TEST(DiskParameters, AreCopiedByTrivialPlanners) {
  const TemporaryDirectory want_folder, got_folder;
  const RunConfig want = run_in(want_folder, "bf16");
  RunConfig got = run_in(got_folder, "bf16");
  put_on_disk(got);
  got.compiler.trivial_planners = true;
  Trainer(want).train();
  Trainer(got).train();
  expect_equal_runs(got, want);
}

TEST(DiskParameters, OfOneSegmentAlone) {
  const TemporaryDirectory want_folder, got_folder;
  const RunConfig want = run_in(want_folder, "bf16");
  RunConfig got = run_in(got_folder, "bf16");
  put_on_disk(got);
  got.memory.optimizer_state = "auto";
  got.memory.cold = {"embedding"};
  Trainer(want).train();
  Trainer(got).train();
  expect_on_disk(got);
  expect_equal_runs(got, want);
}

// Moments and lower 16 bits go to disk, even of parameters that a budget keeps in memory.
TEST(DiskParameters, ButForSomeTrainAndValidateBitForBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory want_folder, got_folder;
    const RunConfig want = run_in(want_folder, precision);
    RunConfig got = run_in(got_folder, precision);
    put_on_disk(got);
    PlanFile file = anabatic::testing::plan_of(got).file;
    const std::string held = "layers.0.experts.up.weight";
    const std::size_t num_on_disk = testing::plans_trivially() ? 0 : 1;
    EXPECT_EQ(std::erase(file.on_disk, held), num_on_disk) << precision;
    EXPECT_EQ(std::erase(file.on_disk, "head.weight"), num_on_disk) << precision;
    file.decisions.resident_parameters = {held, "head.weight"};
    got.memory.plan = got_folder.path() / "plan.json";
    write_file_atomically(got.memory.plan, to_json(file));
    got.compiler.poison = true;
    Trainer(want).train();
    Trainer(got).train();
    EXPECT_THAT(read_file(fs::path(got.train.output) / "plan.txt"),
                HasSubstr("and parameters, except 2 of these"));
    expect_equal_runs(got, want);
  }
}

TEST(DiskParameters, ResumeFromMemoryAndBack) {
  const TemporaryDirectory whole_folder;
  const RunConfig whole = run_in(whole_folder, "bf16");
  Trainer(whole).train();
  for (const bool begins_on_disk : {true, false}) {
    const TemporaryDirectory folder;
    RunConfig run = run_in(folder, "bf16");
    run.train.save_every = 2;
    run.train.keep_last = 0;
    begins_on_disk ? put_on_disk(run) : put_in_memory(run);
    Trainer(run).train();
    anabatic::testing::go_back_to(run.train.output, 2);
    begins_on_disk ? put_in_memory(run) : put_on_disk(run);
    Trainer(run).train();
    EXPECT_TRUE(checkpoint_bytes(*latest_checkpoint(run.train.output)) ==
                checkpoint_bytes(*latest_checkpoint(whole.train.output)));
  }
}

TEST(DiskParameters, AreImported) {
  const TemporaryDirectory first_folder, want_folder, got_folder;
  const RunConfig first = run_in(first_folder, "bf16");
  Trainer(first).train();
  RunConfig want = run_in(want_folder, "bf16"), got = run_in(got_folder, "bf16");
  for (RunConfig* run : {&want, &got}) {
    run->model.path = *latest_checkpoint(first.train.output);
    run->model.init = "pretrained";
  }
  put_on_disk(got);
  Trainer(want).train();
  Trainer(got).train();
  expect_equal_runs(got, want);
}

TEST(DiskParameters, StopTheRunWhereTheDiskGivesOtherBytes) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder, "bf16");
  run.compiler.trivial_planners = false;
  put_on_disk(run);
  run.memory.cold = {"embedding"};
  run.memory.optimizer_state = "auto";
  std::string message = "no error";
  try {
    // Whole moments are read at once, so that there are fewer reads.
    const int at = testing::has_pass("slice_optimizer") ? 12 : 4;
    Trainer(run, with_fault({Fault::kFlip, false, at})).train();
  } catch (const ResourceError& error) {
    message = error.what();
  }
  EXPECT_THAT(message,
              AllOf(HasSubstr("[swap] file in " + run.train.output), HasSubstr("embedding.weight"),
                    HasSubstr("the disk returned other bytes")));
}

}  // namespace
}  // namespace anabatic::train
