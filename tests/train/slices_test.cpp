// SPDX-License-Identifier: Apache-2.0
// Calls that run in slices: equal bits in less memory.
#include "analysis/slices.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/text.h"
#include "support/planned_run.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "train/plan_file.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using testing::plan_of;
using testing::PlannedRun;
using testing::TemporaryDirectory;
using testing::tiny_run;

// Large enough that each kind of call has something to save.
RunConfig sliceable_run(const std::filesystem::path& folder, const std::string& precision) {
  RunConfig run = tiny_run(folder,
                           "\"hidden_size\": 64, \"intermediate_size\": 256, \"vocab_size\": 997, "
                           "\"num_local_experts\": 6");
  run.data.sequence_length = 64;
  run.train.micro_batch_size = 16;
  run.train.steps = 3;
  run.train.precision = precision;
  run.compiler.pack_transposed = false;
  run.compiler.trivial_planners = false;
  run.compiler.poison = true;
  return run;
}

// An int8 product packs experts by groups where no packing is kept.
RunConfig int8_run(const std::filesystem::path& folder) {
  RunConfig run = sliceable_run(folder, "int8");
  run.compiler.keep_packings = false;
  return run;
}

// Kinds of calls that must be among those that are cut.
std::vector<std::string> expected_calls() {
  std::vector<std::string> calls{"attention.attention_gradient"};
  if (testing::has_pass("fuse_head_loss")) calls.emplace_back("head.head_loss_with_gradient");
  if (testing::has_pass("fuse_activation") && testing::has_pass("move_router_weight"))
    calls.emplace_back("experts.grouped_linear_activation_gradient_with_weights");
  if (testing::has_pass("fuse_gate_up"))
    calls.emplace_back("experts.grouped_linear_many_input_gradient");
  return calls;
}

// The whole plan with each kind of call cut as far as the menu has it.
spec::Decisions all_cut(const RunConfig& run, const PlannedRun& whole) {
  spec::Decisions decisions = whole.file.decisions;
  for (const analysis::SliceableKind& kind :
       analysis::sliceable_kinds(whole.budgeted.plan.training.graph))
    for (const std::int64_t slices : {32, 16, 8, 4}) {
      PlanFile file = whole.file;
      file.decisions.slices = {{kind.key, std::min(slices, kind.most)}};
      RunConfig replayed = run;
      replayed.memory.plan = std::filesystem::path(run.train.output).parent_path() / "try.json";
      write_file_atomically(replayed.memory.plan, to_json(file));
      try {
        plan_of(replayed);
      } catch (const InvalidArgument&) {  // saves nothing compared with fewer slices
        continue;
      }
      decisions.slices.insert(*file.decisions.slices.begin());
      break;
    }
  return decisions;
}

TEST(Slices, OfEveryKindOfCallTrainTheBitsOfWholeCalls) {
  for (const std::string precision : {"bf16", "fp32", "int8"})
    for (const char* update : {"after_backward", "in_backward"}) {
      const TemporaryDirectory folder;
      RunConfig run =
          precision == "int8" ? int8_run(folder.path()) : sliceable_run(folder.path(), precision);
      run.optimizer.update = update;
      const PlannedRun whole = plan_of(run);
      const std::string want = checkpoint_bytes(Trainer(run).train().checkpoint);
      PlanFile file = whole.file;
      file.decisions = all_cut(run, whole);
      for (const std::string& call : expected_calls())
        EXPECT_TRUE(file.decisions.slices.contains(call)) << precision << " " << call;
      run.memory.plan = folder.path() / "plan.json";
      write_file_atomically(run.memory.plan, to_json(file));
      const std::int64_t peak = plan_of(run).budgeted.memory.peak_bytes;
      EXPECT_LE(peak, whole.budgeted.memory.peak_bytes);
      if (testing::has_optional_passes()) {  // else the peak is at no call that is cut
        EXPECT_LT(peak, whole.budgeted.memory.peak_bytes);
      }
      run.train.resume = "never";
      run.train.output = folder.path() / "cut";
      EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == want)
          << precision << " " << update;
    }
}

TEST(Slices, OfASavedPlanThatThisStepHasNotAreRefused) {
  const TemporaryDirectory folder;
  RunConfig run = sliceable_run(folder.path(), "bf16");
  const PlannedRun whole = plan_of(run);
  run.memory.plan = folder.path() / "plan.json";
  for (const auto& [key, slices] :
       {std::pair<std::string, std::int64_t>{"head.head_loss_with_gradient", 7},
        {"head.head_loss", 8},
        {"attention.attention_gradient", 0}}) {
    PlanFile file = whole.file;
    file.decisions.slices = {{key, slices}};
    write_file_atomically(run.memory.plan, to_json(file));
    try {
      plan_of(run);
      FAIL() << key;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("{} in {} slices", key, slices)),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace anabatic::train
