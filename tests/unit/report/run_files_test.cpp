// SPDX-License-Identifier: Apache-2.0
// What a page is told of a run's directory, whole, torn or missing.
#include "report/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "report/report.h"
#include "unit/io/test_files.h"

namespace anabatic::report {
namespace {

namespace fs = std::filesystem;
using io::read_text;
using io::TempDirectory;
using io::write_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const fs::path& directory) {
  try {
    read_run(directory);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

TEST(ReadRun, TakesARunThatIsAtWorkAndWasMadeWithoutARecord) {
  const TempDirectory directory;
  write_text(directory / "metrics.jsonl",
             "{\"step\":1,\"loss\":4.0,\"tokens\":8,\"step_time_s\":0.5,\"expert_load\":[1.5,2.0],"
             "\"expert_load_min\":[0.5,0.0],\"experts_below_10_percent\":[0,1]}\n"
             "{\"step\":2,\"loss\":null,\"tokens\":8,\"step_time_s\":0.25,\"mfu\":null}\n"
             "{\"step\":3,\"lo");
  write_text(directory / "run.lock", "");
  const OrderedJson run = read_run(directory.path());
  EXPECT_THAT(run["status"].get<std::string>(), HasSubstr("step 2, running or killed"));
  EXPECT_EQ(run["series"]["loss"]["mean"], OrderedJson({4, nullptr}));
  EXPECT_EQ(run["series"]["busiest"]["mean"], OrderedJson({2}));
  EXPECT_EQ(run["series"]["idlest"]["mean"], OrderedJson({0}));
  EXPECT_EQ(run["series"]["starved"]["mean"], OrderedJson({1}));
  EXPECT_FALSE(run["series"].contains("grad_norm"));
  EXPECT_EQ(run["totals"]["tokens"], 16);
  EXPECT_EQ(run["totals"]["losses_not_finite"], 1);
  EXPECT_EQ(run["lines_not_understood"], 0);
  EXPECT_EQ(run["experts"], nullptr);
}

TEST(ReadRun, HasTheLossScaleOfRunsThatHaveOne) {
  const TempDirectory directory;
  write_text(directory / "metrics.jsonl",
             "{\"step\":1,\"loss\":4.0,\"loss_scale\":65536,\"skipped\":true}\n"
             "{\"step\":2,\"loss\":4.0,\"loss_scale\":32768,\"skipped\":false}\n"
             "{\"step\":3,\"loss\":4.0}\n");
  const OrderedJson run = read_run(directory.path());
  EXPECT_EQ(run["series"]["loss_scale"]["mean"], OrderedJson({65536, 32768}));
  EXPECT_EQ(run["totals"]["skipped"], 1);
}

TEST(ReadRun, SaysWhenTheRunIsDone) {
  const TempDirectory directory;
  write_text(directory / "run.json", "{\"steps\": 2, \"config\": {\"train.steps\": \"2\"}}");
  EXPECT_EQ(read_run(directory.path())["status"], "step 0 of 2, stopped");
  write_text(directory / "metrics.jsonl", "{\"step\":2,\"loss\":1}\nnothing\n");
  const OrderedJson run = read_run(directory.path());
  EXPECT_EQ(run["status"], "step 2 of 2, done");
  EXPECT_EQ(run["lines_not_understood"], 1);
  EXPECT_EQ(run["record"]["config"]["train.steps"], "2");
}

TEST(ReadRun, ThinsOutValidationsAndKeepsTheLast) {
  const TempDirectory directory;
  std::string lines;
  for (int step = 0; step < 2500; ++step)
    lines += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step == 7 ? "null" : "2");
  write_text(directory / "metrics.jsonl", "");
  write_text(directory / "validation.jsonl", lines);
  const OrderedJson validation = read_run(directory.path())["validation"];
  EXPECT_EQ(validation["every"], 3);
  EXPECT_EQ(validation["points"].size(), 834u);
  EXPECT_EQ(validation["points"].back(), OrderedJson({2499, 2}));
}

TEST(ReadRun, NamesWhatIsThereInsteadOfARun) {
  const TempDirectory directory;
  EXPECT_THAT(refusal(directory / "none"),
              AllOf(HasSubstr("expected a run's directory"),
                    HasSubstr("there is no " + (directory / "none").string())));
  EXPECT_THAT(refusal(directory.path()), HasSubstr("holds nothing"));
  write_text(directory / "metrics.jsonl", "");
  fs::create_directory(directory / "step-00000002");
  write_text(directory / "step-00000002/config.json", "{}");
  EXPECT_THAT(
      refusal(directory / "step-00000002"),
      AllOf(HasSubstr("holds config.json; did you mean"), HasSubstr(directory.path().string())));
  EXPECT_THAT(refusal(directory / "metrics.jsonl"), HasSubstr("is a file"));
}

TEST(WriteReport, TellsRunsOfOneNameApartAndKeepsTextInItsPlace) {
  const TempDirectory directory;
  for (const char* name : {"a/run", "b/run"}) {
    fs::create_directories(directory / name);
    write_text(directory / name / "metrics.jsonl", "{\"step\":1,\"loss\":1}\n");
    write_text(directory / name / "run.json", "{\"config\":{\"x\":\"</script><b>\"}}");
  }
  write_report({directory / "a/run", directory / "b/run"}, directory / "out.html");
  const std::string text = read_text(directory / "out.html");
  EXPECT_THAT(text, HasSubstr((directory / "a/run").string()));
  EXPECT_THAT(text, HasSubstr("\\u003c/script\\u003e\\u003cb\\u003e"));
  EXPECT_THAT(text, Not(HasSubstr("</script><b>")));
}

}  // namespace
}  // namespace anabatic::report
