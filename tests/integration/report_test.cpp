// SPDX-License-Identifier: Apache-2.0
// `anabatic report` and what `train` leaves for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "base/text.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// What the page draws from.
nlohmann::json data_of(const fs::path& page) {
  const std::string text = read_file(page), begin = "id=\"data\">";
  const std::size_t from = text.find(begin) + begin.size();
  return parse_json(std::string_view(text).substr(from, text.find("</script>", from) - from));
}

TEST(Report, DrawsRunsThatTrainHasLeft) {
  const TemporaryDirectory folder;
  const fs::path yaml = folder.path() / "run.yaml", first = folder.path() / "run",
                 second = folder.path() / "other", page = folder.path() / "both.html";
  train::RunConfig config = tiny_run(folder.path());
  config.train.steps = 3;
  std::ofstream(yaml) << train::to_yaml(config);
  const Outcome train = run_binary({"train", yaml});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  EXPECT_THAT(train.out, HasSubstr("report: " + (first / "report.html").string()));
  const nlohmann::json own = data_of(first / "report.html");
  ASSERT_EQ(own["runs"].size(), 1u);
  EXPECT_EQ(own["runs"][0]["status"], "step 3 of 3, done");

  // A page that cannot be written costs a warning, not the run.
  fs::create_directories(second / "report.html");
  const Outcome other = run_binary({"train", yaml, "--train.output", second, "--train.seed", "5"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, AllOf(HasSubstr("warning: [report] "), HasSubstr("cannot write")));

  const Outcome report = run_binary({"report", first, second, "--output", page});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.out, page.string() + "\n");
  const nlohmann::json runs = data_of(page)["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1]["record"]["config"]["train.seed"], "5");
  for (const nlohmann::json& run : runs) {
    EXPECT_EQ(run["totals"]["num_steps"], 3);
    EXPECT_EQ(run["experts"]["layers"]["1"].size(), 3u);
    EXPECT_EQ(run["times"]["steps"].size(), 3u);
    EXPECT_EQ(run["memory"]["num_positions"], run["record"]["plan"]["timeline"]["num_positions"]);
    EXPECT_FALSE(run["plan_text"].get<std::string>().empty());
  }
}

TEST(Report, NamesWhatIsNoRun) {
  const TemporaryDirectory folder;
  const Outcome outcome = run_binary({"report", folder.path()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("[report] expected a run's directory"),
                                 HasSubstr(folder.path().string() + " holds nothing")));
  EXPECT_EQ(run_binary({"report"}).exit_code, 2);
  EXPECT_EQ(run_binary({"report", folder.path() / "none", folder.path()}).exit_code, 2);
}

}  // namespace
}  // namespace anabatic::testing
