// SPDX-License-Identifier: Apache-2.0
// memory.hot and memory.cold: obeyed for values and for states, or refused with the reason.
#include "plan/hints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/text.h"
#include "device/topology.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "train/budget.h"
#include "train/plan_file.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kWide = "\"hidden_size\": 64, \"intermediate_size\": 48";

BudgetedRun plan(const RunConfig& run) {
  return *plan_as_asked(
      run, model::load_config(run.model.path),
      {.device = device::describe_cpu(2),
       .efficiency = plan::default_efficiency(),
       .limits = {.process_bytes = std::int64_t{8} << 20, .finds_smallest = false}});
}

std::vector<std::string> on_disk(const RunConfig& run) {
  return states_on_disk(plan(run).plan.training);
}

TEST(Hints, NameValuesAndParametersAlike) {
  for (const char* hint : {"layers.3.attention.q", "attention.q", "attention", "layers.3.attention",
                           "layers.3", "attention.qkv", "layers.3.attention.qkv"})
    EXPECT_TRUE(plan::is_named("layers.3.attention.q.weight", hint)) << hint;
  for (const char* hint : {"layers.3.attention.k", "q", "attention.q_rope", "att", "qkv",
                           "layers.1.attention.qkv", "experts.qkv", "attentionqkv", ""})
    EXPECT_FALSE(plan::is_named("layers.3.attention.q.weight", hint)) << hint;
  for (const char* key :
       {"layers.0.attention.q_rope", "layers.0.attention.k", "layers.0.attention.v"})
    EXPECT_TRUE(plan::is_named(key, "attention.qkv")) << key;
  for (const char* key : {"layers.0.attention.output", "layers.0.attention.o.weight",
                          "layers.0.attention.quality", "layers.0.attention_norm"})
    EXPECT_FALSE(plan::is_named(key, "attention.qkv")) << key;
}

TEST(Hints, ColdMomentsGoToDiskAndHotOnesStay) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kWide);
  EXPECT_TRUE(on_disk(run).empty());
  run.memory.cold = {"embedding"};
  EXPECT_THAT(on_disk(run),
              ElementsAre("first_moment.embedding.weight", "second_moment.embedding.weight"));
  run.memory.cold = {"layers.1.attention.qkv"};
  EXPECT_THAT(on_disk(run), Each(HasSubstr("layers.1.attention.")));
  EXPECT_GE(on_disk(run).size(), 2u);
  run.memory.cold.clear();
  run.memory.optimizer_state = "disk";
  const std::size_t all = on_disk(run).size();
  run.memory.hot = {"experts"};
  EXPECT_THAT(on_disk(run), Each(Not(HasSubstr("experts"))));
  EXPECT_LT(on_disk(run).size(), all);
  EXPECT_FALSE(on_disk(run).empty());
  run.memory.cold = {"embedding"};  // goes anyway
  EXPECT_EQ(on_disk(run).size() + 12, all);
}

// With moments that stay in memory: those of a stack are cut where that is needed, and nowhere
// else.
TEST(Hints, ColdExpertsGoToDiskByThemselves) {
  if (!testing::has_pass("slice_optimizer")) GTEST_SKIP() << "moments of a stack stay whole";
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kWide);
  run.train.precision = "bf16";
  run.memory.cold = {"layers.1.experts.2.up"};
  EXPECT_THAT(on_disk(run), ElementsAre("first_moment.layers.1.experts.up.weight.slice.1",
                                        "second_moment.layers.1.experts.up.weight.slice.1"));
  const plan::Plan& plan_of_one = plan(run).plan.training.plan;
  const std::int64_t expert_bytes = 64 * 48 * 4;
  EXPECT_EQ(plan_of_one.disk_bytes, 2 * expert_bytes);
  run.memory.masters = "disk";
  EXPECT_THAT(on_disk(run), ::testing::Contains("low.layers.1.experts.up.weight.slice.1")
                                .Times(testing::has_pass("split_parameters") ? 1 : 0));
  run.memory.masters = "resident";
  run.memory.cold = {"experts.0-1"};
  EXPECT_EQ(plan(run).plan.training.plan.disk_bytes, 2 * 3 * 2 * 2 * expert_bytes);
  run.memory.cold.clear();
  run.memory.optimizer_state = "disk";
  const std::int64_t all = plan(run).plan.training.plan.disk_bytes;
  run.memory.hot = {"layers.0.experts.3"};
  EXPECT_EQ(plan(run).plan.training.plan.disk_bytes, all - 3 * 2 * expert_bytes);
}

TEST(Hints, HotValuesAreNotMadeAgain) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.compiler.trivial_planners = false;
  run.data.sequence_length = 512;
  run.train.micro_batch_size = 8;
  run.train.gradient_accumulation_steps = 2;
  const BudgetedRun whole = plan(run);
  run.memory.budget = whole.memory.peak_bytes - whole.plan.training.plan.frame_bytes / 2;
  const auto choices = plan(run).plan.training.memory.choices;
  ASSERT_FALSE(choices.empty());
  const std::string name = choices.front().name;
  run.memory.hot = {name, "embedding.weight"};
  for (const plan::PricedChoice& choice : plan(run).plan.training.memory.choices)
    EXPECT_NE(choice.name, name);
}

TEST(Hints, TrainTheBitsOfAResidentRun) {
  std::string want;
  for (const char* cold : {"", "embedding", "layers.0", "experts.1", "layers.1.experts.0-2.up"}) {
    if (std::string_view(cold).find("experts.") != std::string_view::npos &&
        !testing::has_pass("slice_optimizer"))
      continue;  // refused, see below
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), kWide);
    run.train.precision = "bf16";
    run.memory.masters = "disk";
    run.compiler.poison = true;
    if (*cold) run.memory.cold = {cold};
    const std::string got = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << cold;
  }
}

// Slices of moments and lower 16 bits begin elsewhere then; files have them whole.
TEST(Hints, NameOtherExpertsAfterAResume) {
  if (!testing::has_pass("slice_optimizer")) GTEST_SKIP() << "moments of a stack stay whole";
  std::string want;
  for (const char* cold : {"", "experts.2-3", "layers.0.experts.1.down"}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), kWide);
    run.train.precision = "bf16";
    run.memory.masters = "disk";
    run.train.save_every = 3;
    run.train.keep_last = 0;
    run.memory.cold = {"experts.0-1", "experts.3.up"};
    Trainer(run).train();
    anabatic::testing::go_back_to(run.train.output, 3);
    run.memory.cold.clear();
    if (*cold) run.memory.cold = {cold};
    const std::string got = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << cold;
  }
}

TEST(Hints, ThatCannotBeObeyedAreRefusedWithTheReason) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kWide);
  const auto refusal = [&](std::vector<std::string> hot, std::vector<std::string> cold) {
    RunConfig hinted = run;
    hinted.memory.hot = std::move(hot);
    hinted.memory.cold = std::move(cold);
    try {
      plan(hinted);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refusal({"attention.qkv", "experts.gate"}, {"embedding", "head"}), "nothing");
  EXPECT_THAT(refusal({"nowhere"}, {}), HasSubstr("memory.hot: expected a segment, a parameter"));
  EXPECT_THAT(refusal({"embeding.weight"}, {}), HasSubstr("did you mean embedding.weight?"));
  EXPECT_THAT(refusal({}, {"nothing.like.it"}),
              HasSubstr("memory.cold: expected a segment or a parameter"));
  const std::string others = "which the pass slice_optimizer cuts apart, got others for";
  EXPECT_THAT(refusal({"experts.0-1"}, {"experts.2"}),
              HasSubstr(testing::has_pass("slice_optimizer") ? "nothing" : others));
  EXPECT_THAT(refusal({}, {"layers.1.experts.4"}),
              HasSubstr("memory.cold: expected experts 0 to 3 of layers.1.experts.down.weight, got "
                        "'layers.1.experts.4'"));
  EXPECT_THAT(refusal({"experts.2-9.up.weight"}, {}),
              HasSubstr("memory.hot: expected experts 0 to 3 of layers.0.experts.up.weight"));
  EXPECT_THAT(refusal({}, {"layers.9.experts.3"}),
              HasSubstr("memory.cold: expected a segment or a parameter"));
  EXPECT_THAT(refusal({"experts.3.activation"}, {}),
              HasSubstr("memory.hot: expected a segment, a parameter"));
  EXPECT_THAT(refusal({"experts.1-2"}, {"experts.2-3"}),
              HasSubstr("expected hints that agree, got 'experts.2-3'"));
  EXPECT_THAT(refusal({}, {"attention.q_rope"}),
              HasSubstr("memory.activations: disk lets activations go there"));
  EXPECT_THAT(refusal({}, {"norm"}), HasSubstr("expected moments of at least 4.00 KiB"));
  EXPECT_THAT(refusal({"layers.0"}, {"experts"}),
              HasSubstr("expected hints that agree, got 'experts'"));
  run.optimizer.state_precision = "int8";  // in blocks of a stack's elements
  EXPECT_THAT(refusal({}, {"experts.1"}), HasSubstr(others));
  EXPECT_EQ(refusal({}, {"experts"}), "nothing");
}

}  // namespace
}  // namespace anabatic::train
