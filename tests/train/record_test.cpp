// SPDX-License-Identifier: Apache-2.0
// What a run records of itself for its report: run.json and windows.jsonl.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "support/tiny_run.h"
#include "train/record/windows_log.h"
#include "train/run_plan.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::json_lines;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;

// One run of two micro-batches a step, which all tests read.
class RunRecord : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryDirectory;
    RunConfig run = tiny_run(folder_->path());
    run.train.gradient_accumulation_steps = 2;
    output_ = run.train.output;
    result_ = Trainer(run).train();
  }
  static void TearDownTestSuite() { delete folder_; }

  static auto windows() { return json_lines(output_ / "windows.jsonl"); }
  static auto steps() { return json_lines(output_ / "metrics.jsonl"); }
  static nlohmann::json record() { return parse_json(read_file(output_ / "run.json")); }

  inline static TemporaryDirectory* folder_ = nullptr;
  inline static fs::path output_;
  inline static TrainResult result_;
};

TEST_F(RunRecord, CountsTheTokensThatMetricsSayTheBalanceOf) {
  const auto windows = this->windows(), steps = this->steps();
  ASSERT_EQ(windows.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(windows[i]["first_step"], steps[i]["step"]);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const auto counts = windows[i]["experts"][std::to_string(layer)].get<std::vector<double>>();
      double sum = 0;
      for (const double count : counts) sum += count;
      EXPECT_EQ(*std::max_element(counts.begin(), counts.end()) * 4 / sum,
                steps[i]["expert_load"][layer]);
    }
  }
}

TEST_F(RunRecord, SumsTheTimeOfAStepAndLooksAtMemoryOnce) {
  const std::int64_t positions = record()["plan"]["timeline"]["num_positions"];
  int looks = 0;
  for (const nlohmann::json& line : windows()) {
    const nlohmann::json& time = line["time"];
    double sum = time["outside_seconds"];
    for (const auto& [name, seconds] : time["segments"].items()) {
      EXPECT_GT(seconds, 0.0) << name;
      sum += seconds.get<double>();
    }
    EXPECT_LT(std::abs(sum - time["seconds"].get<double>()), 1e-9);
    if (!line.contains("memory")) continue;
    ++looks;
    EXPECT_EQ(line["memory"]["step"], 2);
    EXPECT_EQ(line["memory"]["num_positions"], positions);
    ASSERT_GT(line["memory"]["positions"].size(), 10u);
    EXPECT_LT(line["memory"]["positions"].back(), positions);
    for (const nlohmann::json& bytes : line["memory"]["bytes"])
      EXPECT_LE(bytes, steps().back()["peak_memory_bytes"]);
  }
  EXPECT_EQ(looks, 1);
  for (const char* segment : {"attention", "router", "experts", "optimizer"})
    EXPECT_GT(record()["plan"]["segments"][segment], 0.0);
}

TEST(WindowsLog, KeepsALongRunShortAndEndsAWindowAtACheckpoint) {
  const TemporaryDirectory folder;
  const RunConfig run = with_training_precision(tiny_run(folder.path()));
  ModelSession session(run, false);
  const auto program = bind_training(session);
  ExpertCounts step({0, 1}, 2);
  std::fill(step.values().begin(), step.values().end(), 3);
  WindowsLog log(folder.path(), 1, 1000, *program, step);
  for (std::int64_t i = 1; i <= 1000; ++i) {
    log.add(i, step);
    if (i == 7) log.sync();
  }
  log.sync();
  const auto lines = json_lines(folder.path() / "windows.jsonl");
  EXPECT_EQ(lines.size(), 201u);
  std::int64_t next = 1, tokens = 0;
  for (const nlohmann::json& line : lines) {
    EXPECT_EQ(line["first_step"], next);
    next = line["step"].get<std::int64_t>() + 1;
    tokens += line["experts"]["1"][0].get<std::int64_t>();
  }
  EXPECT_EQ(lines[1]["step"], 7);
  EXPECT_EQ(next, 1001);
  // Goes on behind step 502, which a window ends at.
  const WindowsLog resumed(folder.path(), 503, 1000, *program, step);
  EXPECT_EQ(json_lines(folder.path() / "windows.jsonl").back()["step"], 502);
  EXPECT_EQ(tokens, 3000);
}

TEST_F(RunRecord, SumsToThePlan) {
  const nlohmann::json record = this->record();
  EXPECT_EQ(record["plan"]["peak_bytes"], result_.planned_memory_bytes);
  const nlohmann::json& uses = record["plan"]["timeline"]["uses"];
  const std::size_t columns = uses["parameters"].size();
  std::int64_t most = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    std::int64_t sum = 0;
    for (const auto& [name, bytes] : uses.items()) sum += bytes[c].get<std::int64_t>();
    most = std::max(most, sum);
  }
  EXPECT_EQ(most + record["plan"]["beside_step_bytes"].get<std::int64_t>(),
            result_.planned_memory_bytes);
  double seconds = 0;
  for (const auto& [name, value] : record["plan"]["segments"].items())
    seconds += value.get<double>();
  EXPECT_LT(std::abs(seconds - result_.planned_step_seconds), 1e-9);
  EXPECT_EQ(record["config"]["train.steps"], "8");
  EXPECT_EQ(record["environment"]["threads"], 2);
}

}  // namespace
}  // namespace anabatic::train
