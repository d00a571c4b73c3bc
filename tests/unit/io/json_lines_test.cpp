// SPDX-License-Identifier: Apache-2.0
#include "io/json_lines.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

TEST(JsonLinesWriter, AppendsOneObjectALine) {
  const TempDirectory directory;
  {
    JsonLinesWriter writer(directory / "m.jsonl");
    writer.write({{"step", 1}, {"loss", 0.5}});
    EXPECT_EQ(read_text(directory / "m.jsonl"), "{\"step\":1,\"loss\":0.5}\n");
  }
  JsonLinesWriter writer(directory / "m.jsonl");
  writer.write({{"step", 2}, {"loss", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(read_text(directory / "m.jsonl"),
            "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":null}\n");
}

TEST(JsonLinesWriter, DropsALineThatWasCutOff) {
  const TempDirectory directory;
  const std::string whole = "{\"step\":1}\n";
  write_text(directory / "m.jsonl", whole + std::string(100000, 'x'));
  JsonLinesWriter writer(directory / "m.jsonl");
  writer.write({{"step", 2}});
  EXPECT_EQ(read_text(directory / "m.jsonl"), whole + "{\"step\":2}\n");
  write_text(directory / "n.jsonl", "{\"st");
  JsonLinesWriter second(directory / "n.jsonl");
  EXPECT_EQ(read_text(directory / "n.jsonl"), "");
}

TEST(KeepSteps, DropsLaterSteps) {
  const TempDirectory directory;
  keep_steps(directory / "none", 3);
  EXPECT_FALSE(std::filesystem::exists(directory / "none"));
  write_text(directory / "m",
             "{\"step\":1}\n{\"a\":2}\nrubbish\n{\"step\":3}\n{\"step\":4}\n{\"step\":2");
  keep_steps(directory / "m", 3);
  EXPECT_EQ(read_text(directory / "m"), "{\"step\":1}\n{\"step\":3}\n");
}

TEST(VisitSteps, HandsOverWholeLinesAlone) {
  const TempDirectory directory;
  std::vector<std::int64_t> steps;
  const auto note = [&](std::int64_t step, const Json&) { steps.push_back(step); };
  EXPECT_EQ(visit_steps(directory / "none", note), 0);
  write_text(directory / "m", "{\"step\":1}\n{\"a\":2}\nrubbish\n{\"step\":3}\n{\"step\":4}");
  EXPECT_EQ(visit_steps(directory / "m", note), 2);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 3}));
}

}  // namespace
}  // namespace anabatic::io
