// SPDX-License-Identifier: Apache-2.0
// A plan's choices saved, compared and replayed.
#include "train/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/text.h"
#include "plan/budget_error.h"
#include "support/error_message.h"
#include "support/planned_run.h"
#include "support/tiny_run.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::plan_of;
using testing::PlannedRun;
using testing::TemporaryDirectory;
using testing::tiny_run;

// Planned within a budget that asks for `share` of the frame back.
RunConfig lean_run(const std::filesystem::path& folder, double share) {
  RunConfig run = tiny_run(folder);
  run.data.sequence_length = 256;
  run.train.micro_batch_size = 8;
  run.train.gradient_accumulation_steps = 2;
  run.compiler.trivial_planners = false;
  const PlannedRun whole = plan_of(run);
  run.memory.budget =
      whole.budgeted.memory.peak_bytes -
      static_cast<std::int64_t>(share *
                                static_cast<double>(whole.budgeted.plan.training.plan.frame_bytes));
  return run;
}

template <class Error>
std::string refusal(const RunConfig& run) {
  return testing::message_of<Error>([&] { plan_of(run); });
}

TEST(PlanFiles, IsReplayedToTheByte) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() / "plan.json";
  for (const double share : {0.0, 0.15, 0.3}) {
    RunConfig run = lean_run(folder.path(), share);
    const PlannedRun saved = plan_of(run);
    EXPECT_EQ(saved.file.choices.empty(), share == 0);
    write_file_atomically(file, to_json(saved.file));
    EXPECT_EQ(to_json(read_plan_file(file)).size(), to_json(saved.file).size());

    run.memory.budget = 0;
    run.memory.plan = file;
    const PlannedRun again = plan_of(run);
    EXPECT_EQ(to_json(again.file), to_json(saved.file));
    EXPECT_EQ(plan::print(again.budgeted.plan.training.graph, again.budgeted.plan.training.plan),
              plan::print(saved.budgeted.plan.training.graph, saved.budgeted.plan.training.plan));
    EXPECT_EQ(difference(read_plan_file(file), again.file), "the plans are the same\n");
    EXPECT_EQ(again.budgeted.note, "choices of " + file);
  }
}

TEST(PlanFiles, TrainsWithTheBitsOfTheRunThatChoseForItself) {
  const TemporaryDirectory folder;
  RunConfig run = lean_run(folder.path(), 0.55);
  run.train.steps = 3;
  run.train.resume = "never";
  const std::string file = folder.path() / "plan.json";
  write_file_atomically(file, to_json(plan_of(run).file));
  run.memory.budget = 0;
  const std::string want = checkpoint_bytes(Trainer(run).train().checkpoint);
  for (const int threads : {1, 2, 3}) {
    run.device.threads = threads;
    run.compiler.poison = true;
    run.memory.plan = threads == 2 ? file : "";
    EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == want) << threads;
  }
}

TEST(PlanFiles, OfAnotherStepIsRefusedNamingEachDifference) {
  const TemporaryDirectory folder;
  RunConfig run = lean_run(folder.path(), 0.55);
  const std::string file = folder.path() / "plan.json";
  write_file_atomically(file, to_json(plan_of(run).file));
  run.memory.plan = file;
  run.memory.budget = 0;
  RunConfig other = run;
  other.data.sequence_length = 32;
  other.train.precision = "bf16";
  const std::string text = refusal<InvalidArgument>(other);
  EXPECT_THAT(text, HasSubstr("is of another step"));
  EXPECT_THAT(text, HasSubstr("data.sequence_length: expected 32, found 256"));
  EXPECT_THAT(text, HasSubstr("train.precision: expected bf16, found fp32"));
  EXPECT_THAT(text, Not(HasSubstr("micro_batch_size")));
  other = run;
  anabatic::testing::write_tiny_config(folder.path(), "\"num_hidden_layers\": 3");
  EXPECT_THAT(refusal<InvalidArgument>(other), HasSubstr("num_hidden_layers: expected 3, found 2"));
  anabatic::testing::write_tiny_config(folder.path(), "\"rms_norm_eps\": 0.125");
  EXPECT_THAT(refusal<InvalidArgument>(other), HasSubstr("graph: expected"));
}

TEST(PlanFiles, IsAtOddsWithValuesHintsAndBudgetsAloud) {
  const TemporaryDirectory folder;
  RunConfig run = lean_run(folder.path(), 0.55);
  const std::string file = folder.path() / "plan.json";
  const PlanFile saved = plan_of(run).file;
  write_file_atomically(file, to_json(saved));
  run.memory.plan = file;
  run.memory.budget = 9 << 20;
  EXPECT_THAT(refusal<plan::BudgetError>(run), HasSubstr("need "));
  run.memory.budget = 0;
  run.memory.keep = {saved.choices.front().name};
  EXPECT_THAT(refusal<InvalidArgument>(run), HasSubstr("the saved plan does not keep"));
  run.memory.keep.clear();
  PlanFile edited = saved;
  edited.decisions.recompute.insert("layers.0.mlp_nrm");
  write_file_atomically(file, to_json(edited));
  EXPECT_THAT(refusal<InvalidArgument>(run),
              HasSubstr("layers.0.mlp_nrm; did you mean layers.0.mlp_norm?"));
  edited = saved;
  edited.decisions.resident_parameters.insert("head.weigt");
  write_file_atomically(file, to_json(edited));
  EXPECT_THAT(refusal<InvalidArgument>(run), HasSubstr("head.weigt; did you mean head.weight?"));
  edited = saved;
  edited.decisions.norms_in_products = {{"layers.0.mlp_norm"}};  // experts gather its rows
  write_file_atomically(file, to_json(edited));
  EXPECT_THAT(refusal<InvalidArgument>(run),
              HasSubstr("expected a saved plan whose norms_in_products this model can apply, got "
                        "layers.0.mlp_norm"));
  edited = saved;
  edited.on_disk = {"first_moment.head.weight"};
  write_file_atomically(file, to_json(edited));
  EXPECT_THAT(refusal<InvalidArgument>(run),
              HasSubstr("first_moment.head.weight: expected in memory, found on disk"));
}

TEST(PlanFiles, NamesWhatIsWrongInAFile) {
  const TemporaryDirectory folder;
  const RunConfig run = lean_run(folder.path(), 0.55);
  const std::string file = folder.path() / "plan.json", good = to_json(plan_of(run).file);
  const auto error_of = [&](const std::string& content) -> std::string {
    std::ofstream(file) << content;
    try {
      read_plan_file(file);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    return error_of(bad);
  };
  EXPECT_EQ(error_of(good), "nothing");
  EXPECT_THAT(error_of(""), HasSubstr("expected JSON"));
  EXPECT_THAT(error_of(good.substr(0, good.size() / 2)), HasSubstr("expected JSON"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("expected JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("plan.json: expected an object, got []"));
  EXPECT_THAT(with("\"format\": 9", "\"format\": 6"), HasSubstr("format: expected 9, got 6"));
  EXPECT_THAT(with("\"decisions\"", "\"decision\""),
              HasSubstr("expected a field `decisions`, got none"));
  EXPECT_THAT(with("\"recompute\": [", "\"recompute\": [7, "),
              HasSubstr("plan.json: decisions.recompute[0]: expected a string, got 7"));
  EXPECT_THAT(with("\"peak_bytes\": ", "\"peak_bytes\": \"x\", \"y\": "),
              HasSubstr("predicted.peak_bytes: expected an integer, got \"x\""));
  EXPECT_THAT(with("\"how\": \"recompute\"", "\"how\": \"fp4\""),
              HasSubstr("how: expected recompute or bf16 or int8 or disk or slices, got \"fp4\""));
  EXPECT_THAT(
      with("\"saved_as\": {}", "\"saved_as\": {\"head\": \"recompute\"}"),
      HasSubstr("decisions.saved_as.head: expected bf16 or int8 or disk, got \"recompute\""));
  EXPECT_THAT(with("\"pack_transposed\": ", "\"pack_transposed\": 3, \"y\": "),
              HasSubstr("decisions.pack_transposed: expected true or false, got 3"));
}

TEST(PlanFiles, DiffSaysWhatChangesInChoicesBytesAndSeconds) {
  const TemporaryDirectory folder;
  const PlanFile whole = plan_of(lean_run(folder.path(), 0)).file,
                 lean = plan_of(lean_run(folder.path(), 0.55)).file;
  const std::string text = difference(whole, lean), back = difference(lean, whole);
  EXPECT_THAT(text, HasSubstr("  + layers."));
  EXPECT_THAT(text, Not(HasSubstr("  - layers.")));
  EXPECT_THAT(back, HasSubstr("  - layers."));
  EXPECT_THAT(text, HasSubstr("saved activations"));
  EXPECT_THAT(text, HasSubstr("bytes        peak " + format_bytes(whole.peak_bytes)));
  EXPECT_THAT(text, HasSubstr("time         step"));
  PlanFile longer = whole;
  for (auto& [name, value] : longer.step)
    if (name == "data.sequence_length") value = "128";
  EXPECT_THAT(difference(whole, longer), HasSubstr("data.sequence_length: was 256, is 128"));
}

}  // namespace
}  // namespace anabatic::train
