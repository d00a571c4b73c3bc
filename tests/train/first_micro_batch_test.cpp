// SPDX-License-Identifier: Apache-2.0
// A step's first micro-batch, which keeps under a budget what the others do not: equal bits in less
// time.
#include <gtest/gtest.h>

#include <cmath>

#include "anabatic/error.h"
#include "base/text.h"
#include "device/topology.h"
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

class FirstMicroBatches : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ = tiny_run(folder_.path(), "\"hidden_size\": 64, \"intermediate_size\": 512");
    run_.data.sequence_length = 64;
    run_.train.micro_batch_size = 4;
    run_.train.gradient_accumulation_steps = 2;
    run_.train.steps = 2;
    run_.compiler.trivial_planners = false;
    run_.compiler.poison = true;
  }

  // Within a budget that asks for `share` of the frame back.
  PlannedRun cut(double share) const {
    RunConfig run = run_;
    const PlannedRun whole = plan_of(run);
    run.memory.budget =
        whole.budgeted.memory.peak_bytes -
        static_cast<std::int64_t>(
            share * static_cast<double>(whole.budgeted.plan.training.plan.frame_bytes));
    return plan_of(run);
  }

  // Likewise, of some share for which the first micro-batch has a plan of its own, of at least so
  // many choices.
  PlannedRun cut_apart(std::size_t least_choices = 0) const {
    for (const double share : {0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5})
      if (PlannedRun planned = cut(share);
          planned.file.decisions.first &&
          planned.budgeted.plan.training.memory.first_choices.size() >= least_choices)
        return planned;
    throw Error("no share leaves the first micro-batch a plan of its own");
  }

  PlannedRun replayed(const PlanFile& file) {
    run_.memory.plan = folder_.path() / "plan.json";
    write_file_atomically(run_.memory.plan, to_json(file));
    return plan_of(run_);
  }

  std::string trained() {
    run_.train.resume = "never";
    return checkpoint_bytes(Trainer(run_).train().checkpoint);
  }

  TemporaryDirectory folder_;
  RunConfig run_;
};

TEST_F(FirstMicroBatches, TrainTheBitsOfTheOthersInLessTime) {
  for (const auto& [precision, micro_batches] : {std::pair{"fp32", 3}, {"bf16", 2}}) {
    SCOPED_TRACE(precision);
    run_.train.precision = precision;
    run_.train.gradient_accumulation_steps = micro_batches;
    run_.memory.plan.clear();
    const std::string want = trained();
    const PlannedRun planned = cut_apart();
    const lower::Compiled& training = planned.budgeted.plan.training;
    EXPECT_LT(training.memory.first_added_seconds, training.memory.added_seconds);
    EXPECT_EQ(training.first->plan.peak_bytes(), training.plan.peak_bytes());
    EXPECT_EQ(to_json(replayed(planned.file).file), to_json(planned.file));
    EXPECT_TRUE(trained() == want);
    // What the run records by segment is the price of the step, the first micro-batch's own too.
    const auto plan =
        parse_json(read_file(std::filesystem::path(run_.train.output) / "run.json"))["plan"];
    double seconds = plan["disk_seconds"];
    for (const auto& [segment, part] : plan["segments"].items()) seconds += part.get<double>();
    EXPECT_LT(std::abs(seconds - plan["step_seconds"].get<double>()), 1e-9);

    PlanFile file = planned.file;
    file.decisions.first.reset();
    const PlannedRun alike = replayed(file);
    EXPECT_FALSE(alike.budgeted.plan.training.first);
    EXPECT_EQ(alike.file.step_bytes, planned.file.step_bytes);
    EXPECT_GT(alike.file.step_seconds, planned.file.step_seconds);
    EXPECT_TRUE(trained() == want);
  }
}

// Too few gradients for all that would be kept: some values are recomputed there too.
TEST_F(FirstMicroBatches, KeepWhatThereIsRoomFor) {
  if (!testing::has_optional_passes())
    GTEST_SKIP() << "without any optional pass, no plan fits a share that asks for two choices";
  run_.train.micro_batch_size = 8;
  const std::string want = trained();
  const PlannedRun planned = cut_apart(2);
  EXPECT_LT(planned.budgeted.plan.training.memory.first_added_seconds,
            planned.budgeted.plan.training.memory.added_seconds);
  replayed(planned.file);
  EXPECT_TRUE(trained() == want);
}

// A value of the others goes to disk and comes back; the first has no part in that.
TEST_F(FirstMicroBatches, StayInMemoryWhereOthersGoToDisk) {
  if (!testing::has_pass("fuse_activation"))
    GTEST_SKIP() << "gradients leave no room for what the activation keeps without it";
  run_.train.micro_batch_size = 8;
  run_.train.gradient_accumulation_steps = 3;
  const std::string want = trained();
  run_.memory.activations = "disk";
  PlanFile file = plan_of(run_).file;
  file.decisions.saved_as = {{"layers.0.experts.gate", spec::SavedForm::kDisk}};
  file.decisions.first.emplace();
  const PlannedRun planned = replayed(file);
  EXPECT_EQ(planned.budgeted.plan.training.plan.offloads.size(), 1u);
  EXPECT_TRUE(planned.budgeted.plan.training.first->plan.offloads.empty());
  EXPECT_TRUE(trained() == want);
}

TEST_F(FirstMicroBatches, AreLikeTheOthersWithoutABudgetOrAlone) {
  EXPECT_FALSE(plan_of(run_).file.decisions.first);
  run_.train.gradient_accumulation_steps = 1;
  // Without any optional pass, no plan gives back as much.
  const PlannedRun alone = cut(testing::has_optional_passes() ? 0.4 : 0.2);
  EXPECT_FALSE(alone.file.choices.empty());
  EXPECT_FALSE(alone.file.decisions.first);
}

TEST_F(FirstMicroBatches, ObeyHints) {
  run_.memory.recompute = {"attention_norm"};
  const PlannedRun planned = cut_apart();
  for (const char* key : {"layers.0.attention_norm", "layers.1.attention_norm"})
    EXPECT_TRUE(planned.file.decisions.first->recompute.contains(key)) << key;
}

TEST_F(FirstMicroBatches, OfASavedPlanWithoutRoomAreRefused) {
  PlanFile file = cut_apart().file;
  run_.train.gradient_accumulation_steps = 1;
  file.step = step_identity(run_, model::load_config(run_.model.path), device::describe_cpu(2));
  EXPECT_THROW(replayed(file), InvalidArgument);
}

}  // namespace
}  // namespace anabatic::train
