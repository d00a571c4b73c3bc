// SPDX-License-Identifier: Apache-2.0
// The budget that nobody names, and the smallest one that is enough.
#include "train/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "device/topology.h"
#include "plan/budget_error.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"

namespace anabatic::train {
namespace {

using ::testing::HasSubstr;
using testing::kIsSanitized;
using testing::TemporaryDirectory;
using testing::tiny_run;

constexpr std::int64_t kProcess = std::int64_t{8} << 20;

RunConfig wide_run(const std::filesystem::path& folder) {
  RunConfig run = tiny_run(folder);
  run.data.sequence_length = 512;
  run.train.micro_batch_size = 8;
  run.train.gradient_accumulation_steps = 2;
  return run;
}

plan::Outcome<BudgetedRun> try_plan(const RunConfig& run, BudgetLimits limits) {
  limits.process_bytes = kProcess;
  return plan_as_asked(run, model::load_config(run.model.path),
                       {.device = device::describe_cpu(2),
                        .efficiency = plan::default_efficiency(),
                        .limits = limits});
}

BudgetedRun plan(const RunConfig& run, BudgetLimits limits) {
  return plan::value_or_throw(try_plan(run, limits));
}

TEST(DefaultBudget, IsWhatTheMachineHasLeft) {
  const TemporaryDirectory folder;
  RunConfig run = wide_run(folder.path());
  run.compiler.trivial_planners = false;
  ASSERT_EQ(run.memory.budget, RunConfig::Memory::kAvailable);
  const BudgetedRun fastest = plan(run, {});
  const std::int64_t peak = fastest.memory.peak_bytes;
  for (const std::int64_t available : {std::int64_t{1} << 40, peak - kProcess}) {
    const BudgetedRun fits = plan(run, {.available_bytes = available});
    EXPECT_EQ(fits.memory.peak_bytes, peak);
    EXPECT_EQ(fits.note, "");
    EXPECT_TRUE(fits.plan.training.memory.choices.empty());
  }
  const std::int64_t frame = fastest.plan.training.plan.frame_bytes;
  const std::int64_t tight = peak - kProcess - frame / 4;
  const BudgetedRun lean = plan(run, {.available_bytes = tight});
  EXPECT_LE(lean.memory.peak_bytes, tight + kProcess);
  EXPECT_FALSE(lean.plan.training.memory.choices.empty());
  EXPECT_THAT(lean.note, HasSubstr("does not fit into the available memory, " +
                                   format_bytes(tight + kProcess)));

  run.memory.budget = tight + kProcess;
  const BudgetedRun asked = plan(run, {});
  EXPECT_EQ(asked.plan.training.memory.decisions, lean.plan.training.memory.decisions);
  EXPECT_EQ(asked.note, "");

  run.memory.budget = 0;
  EXPECT_EQ(plan(run, {.available_bytes = tight}).memory.peak_bytes, peak);
}

TEST(DefaultBudget, RefusesWhatNothingFits) {
  const TemporaryDirectory folder;
  const auto refused = try_plan(wide_run(folder.path()), {.available_bytes = 1 << 20});
  ASSERT_FALSE(refused);
  const std::string& reason = refused.refusal().reason;
  EXPECT_THAT(reason, HasSubstr("available are 9.00 MiB, the limit of memory.budget: auto"));
  EXPECT_THAT(reason, HasSubstr("memory.budget: this run needs"));
}

// "20.3MB" of "[memory] memory.budget: this run needs 20.3MB or less, got 9MB".
std::string needed_of(const std::string& text) {
  const std::string lead = "this run needs ";
  const std::string rest = text.substr(text.find(lead) + lead.size());
  return rest.substr(0, std::min(rest.find(','), rest.find(" or less")));
}

// Asks far too little, then what the refusal names, then 2 % less.
void expect_smallest(RunConfig run) {
  run.memory.budget = 1 << 20;
  const auto refused = try_plan(run, {});
  ASSERT_FALSE(refused);
  const std::int64_t smallest = refused.refusal().smallest_bytes;
  const std::string& text = refused.refusal().reason;
  const auto named = parse_bytes(needed_of(text));
  ASSERT_TRUE(named.has_value()) << text;
  EXPECT_GE(*named, smallest);
  EXPECT_LE(static_cast<double>(*named), 1.01 * static_cast<double>(smallest));
  run.memory.budget = *named;
  EXPECT_LE(plan(run, {}).memory.peak_bytes, *named);
  ASSERT_GT(smallest, kProcess);
  run.memory.budget = smallest;
  const BudgetedRun fits = plan(run, {});
  EXPECT_LE(fits.memory.peak_bytes, smallest);
  run.memory.budget = smallest - (smallest + 49) / 50;
  EXPECT_FALSE(try_plan(run, {.finds_smallest = false}));
}

// The refusal of a budget that is far too small, as the user typed it.
std::string refusal_of(RunConfig run, const std::string& budget) {
  run.memory = load_run_config("", {{"memory.budget", {budget}}}).memory;
  const auto outcome = try_plan(run, {});
  return outcome ? "planned" : to_string(outcome.refusal());
}

TEST(BudgetRefusal, BeginsWithTheNeededNumberInTheUnitThatWasTyped) {
  const TemporaryDirectory folder;
  const RunConfig run = wide_run(folder.path());
  for (const auto& [typed, unit] :
       {std::pair<std::string, std::string>{"9MB", "MB"}, {"0.01 GiB", " GiB"}}) {
    const std::string text = refusal_of(run, typed);
    EXPECT_TRUE(text.starts_with("[memory] memory.budget: this run needs ")) << text;
    EXPECT_THAT(text, HasSubstr(", got " + typed + "\n"));
    EXPECT_EQ(unit_of_bytes(needed_of(text)), unit) << text;
    EXPECT_EQ(refusal_of(run, needed_of(text)), "planned") << text;
    if (kIsSanitized) return;  // one search shows what memory it touches
  }
  EXPECT_THAT(refusal_of(run, "9000000"), HasSubstr(", got 9000000 (8.58 MiB)\n"));
}

TEST(BudgetRefusal, HasALineForEachConsumerWithKeysThatShrinkIt) {
  if (kIsSanitized) GTEST_SKIP() << "minutes of planning, with what smaller models show";
  const TemporaryDirectory folder;
  RunConfig run = wide_run(folder.path());
  run.train.micro_batch_size = 6;
  run.train.gradient_accumulation_steps = 2;
  run.data.sequence_length = 512;
  const std::string text = refusal_of(run, "9MB");
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  int consumers = 0;
  for (; std::getline(lines, line); ++consumers) {  // "  optimizer state 0.137MB: ..."
    EXPECT_TRUE(line.starts_with("  ") && line[2] != ' ') << line;
    const std::string taker = line.substr(0, line.find(": "));
    EXPECT_GT(parse_bytes(taker.substr(taker.rfind(' ') + 1)).value_or(0), 0) << line;
    EXPECT_GT(line.size(), taker.size() + 2) << line;
  }
  EXPECT_GE(consumers, testing::plans_trivially() ? 2 : 3);
  // Trivial planners let activations take nearly all.
  if (!testing::plans_trivially()) {
    EXPECT_THAT(text, HasSubstr("optimizer.state_precision: bf16 takes half of it"));
  }
  EXPECT_THAT(text,
              HasSubstr("train.micro_batch_size: 3 with train.gradient_accumulation_steps: 4"));
  EXPECT_THAT(text, HasSubstr("code, libraries, data, staging and threads "));
}

TEST(SmallestBudget, DoesAndTwoPercentLessDoesNot) {
  const TemporaryDirectory folder;
  for (const char* precision : {"fp32", "bf16"}) {
    if (kIsSanitized && precision[0] == 'f') continue;  // one search shows what memory it touches
    RunConfig run = wide_run(folder.path());
    run.train.precision = precision;
    run.train.gradient_accumulation_steps = precision[0] == 'f' ? 1 : 2;
    expect_smallest(run);
  }
}

TEST(SmallestBudget, HoldsForModelsOfRealSize) {
  if (kIsSanitized) GTEST_SKIP() << "minutes of planning, with what smaller models show";
  RunConfig run;
  testing::apply_test_config(run);
  run.train.micro_batch_size = 4;
  for (const char* name : {"dense", "moe_coarse", "moe_fine"}) {
    run.model.path = std::string(ANABATIC_YARDSTICKS) + "/" + name;
    expect_smallest(run);
  }
}

// Between the smallest and what the fastest plan takes.
TEST(Budget, IsKeptWhereverItLiesAndMakesNothingAgainThatItHasRoomFor) {
  if (kIsSanitized) GTEST_SKIP() << "minutes of planning, with what smaller models show";
  RunConfig run;
  testing::apply_test_config(run);
  run.compiler.trivial_planners = false;
  run.model.path = std::string(ANABATIC_YARDSTICKS) + "/dense";
  for (const int micro_batches : {1, 2}) {
    run.train.gradient_accumulation_steps = micro_batches;
    run.memory.budget = 0;
    const std::int64_t most = plan(run, {}).memory.peak_bytes;
    for (const int percent : {95, 90, 87, 84}) {
      run.memory.budget = most * percent / 100;
      const BudgetedRun got = plan(run, {.finds_smallest = false});
      EXPECT_LE(got.memory.peak_bytes, run.memory.budget);
      const std::int64_t room = run.memory.budget - got.memory.peak_bytes;
      const lower::Compiled& training = got.plan.training;
      for (const plan::PricedChoice& choice : training.memory.choices) {
        if (choice.bytes > room) continue;
        spec::Decisions fewer = training.memory.decisions;
        fewer.recompute.erase(choice.name);
        try {
          const RunPlan other =
              *plan_run(run, model::load_config(run.model.path), device::describe_cpu(2),
                        plan::default_efficiency(), {.replay = &fewer});
          EXPECT_GT(other.training.plan.peak_bytes(), training.plan.peak_bytes() + room)
              << percent << " " << choice.name;
        } catch (const InvalidArgument&) {  // one value of several that are made together
        }
      }
    }
  }
}

// The timeline by which choices are made may count more than their plan takes.
TEST(Budget, IsEnoughWhereASmallerOneIs) {
  if (kIsSanitized) GTEST_SKIP() << "minutes of planning, with what smaller models show";
  RunConfig run;
  testing::apply_test_config(run);
  run.compiler.trivial_planners = false;
  run.model.path = std::string(ANABATIC_YARDSTICKS) + "/moe_coarse";
  run.train.precision = "int8";
  run.train.micro_batch_size = 4;
  run.train.gradient_accumulation_steps = 2;
  run.memory.compress = "int8";
  run.memory.optimizer_state = "resident";
  run.memory.budget = 1;
  const auto refused = try_plan(run, {});
  ASSERT_FALSE(refused);
  const std::int64_t smallest = refused.refusal().smallest_bytes;
  for (const int per_mille : {0, 4, 8, 16, 24, 32}) {
    run.memory.budget = smallest + smallest / 1000 * per_mille;
    const auto got = try_plan(run, {.finds_smallest = false});
    ASSERT_TRUE(got) << per_mille;
    EXPECT_LE(got->memory.peak_bytes, run.memory.budget);
  }
}

// Without packings a step in int8 needs no more than one in bf16 but what its products quantise in
// a call, which is less than half a percent here.
TEST(Budget, IsEnoughInInt8NearWhereItIsInBf16) {
  if (kIsSanitized || !testing::has_optional_passes()) GTEST_SKIP() << "of the passes' plan";
  RunConfig run;
  run.compiler.trivial_planners = false;
  run.model.path = std::string(ANABATIC_YARDSTICKS) + "/moe_coarse";
  run.train.precision = "bf16";
  run.train.micro_batch_size = 4;
  run.device.threads = 2;
  run.optimizer.update = "in_backward";
  run.memory.compress = "int8";
  run.memory.optimizer_state = "resident";
  run.memory.budget = 1;
  const auto refused = try_plan(run, {});
  ASSERT_FALSE(refused);
  run.memory.budget = refused.refusal().smallest_bytes;
  run.memory.budget += run.memory.budget / 200;
  run.train.precision = "int8";
  EXPECT_TRUE(try_plan(run, {.finds_smallest = false}));
}

// Without a budget a step in int8 takes the memory of one in bf16, with both packings.
TEST(Peak, IsNearThatOfBf16InInt8) {
  if (!testing::has_optional_passes()) GTEST_SKIP() << "bf16 keeps norms without their pass";
  for (const char* model : {"dense", "moe_coarse"}) {
    RunConfig run;
    testing::apply_test_config(run);
    run.model.path = std::string(ANABATIC_YARDSTICKS) + "/" + model;
    run.train.micro_batch_size = 4;
    run.device.threads = 2;
    run.train.precision = "bf16";
    const std::int64_t want = plan(run, {}).memory.peak_bytes;
    run.train.precision = "int8";
    const std::int64_t peak = plan(run, {}).memory.peak_bytes;
    EXPECT_LE(peak, want + want / 200) << model;
    run.compiler.disable_passes = {"fuse_norm_linear"};
    EXPECT_GT(plan(run, {}).memory.peak_bytes, peak) << model;
  }
}

TEST(Budget, IsDumpedAsChosenNotAsTriedOnTheWay) {
  const TemporaryDirectory folder;
  RunConfig run = wide_run(folder.path());
  run.compiler.trivial_planners = false;
  run.memory.budget = 0;
  run.memory.budget = plan(run, {}).memory.peak_bytes * 4 / 5;
  run.compiler.dump = folder.path() / "dump";
  const BudgetedRun chosen = plan(run, {});
  const lower::Compiled& training = chosen.plan.training;
  const std::filesystem::path dump = folder.path() / "dump" / "training";
  EXPECT_EQ(read_file(dump / "plan.txt"), plan::print(training.graph, training.plan));
  EXPECT_EQ(read_file(dump / "program.txt"), runtime::print(training.program));
}

std::function<bool(int)> at_most(int most) {
  return [most](int trials) { return trials < most; };
}

TEST(SmallestBudget, IsFoundWhereverTheSearchBegins) {
  for (const std::int64_t needed : {10'000, 123'456, 999'999, 1'000'000})
    for (const std::int64_t guess :
         {1, 9'000, 10'000, 120'000, 123'456, 130'000, 999'999, 2'000'000}) {
      int trials = 0;
      const auto holds = [&](std::int64_t bytes) {
        ++trials;
        EXPECT_LE(bytes, 1'000'000);
        return bytes >= needed;
      };
      const SmallestBudget found = search_smallest_budget(guess, 1'000'000, at_most(40), holds);
      EXPECT_TRUE(found.is_smallest) << needed << " " << guess;
      EXPECT_TRUE(holds(found.bytes) || found.bytes == 1'000'000);
      EXPECT_FALSE(holds(found.bytes - (found.bytes + 49) / 50)) << needed << " " << guess;
      trials = 0;
      const SmallestBudget hurried = search_smallest_budget(guess, 1'000'000, at_most(3), holds);
      EXPECT_LE(trials, 3);
      EXPECT_TRUE(hurried.bytes >= needed) << needed << " " << guess;
    }
}

// Holds for some budgets and not for larger ones.
TEST(SmallestBudget, IsVerifiedWhereBudgetsAreNotMonotone) {
  const auto holds = [](std::int64_t bytes) {
    return bytes >= 500'000 && (bytes / 7'000) % 3 != 0;
  };
  for (std::int64_t guess = 480'000; guess < 1'000'000; guess += 9'999) {
    const SmallestBudget found = search_smallest_budget(guess, 1'000'000, at_most(60), holds);
    EXPECT_TRUE(found.is_smallest);
    EXPECT_TRUE(holds(found.bytes) || found.bytes == 1'000'000) << guess;
    EXPECT_FALSE(holds(found.bytes - (found.bytes + 49) / 50)) << guess;
  }
}

}  // namespace
}  // namespace anabatic::train
