// SPDX-License-Identifier: Apache-2.0
// `plan --offsets` as a user runs it: what it prints, and what it says of files that are none.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/offset_instances.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanOffsets : public ::testing::Test {
 protected:
  Outcome run(const std::string& text, const std::string& capacity) {
    std::ofstream(file_) << text;
    return run_binary({"plan", "--offsets", file_, "--capacity", capacity});
  }

  // The message about a file that is no instance.
  std::string refusal(const std::string& text) {
    const Outcome outcome = run(text, "100");
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(file_));
    return outcome.err;
  }

  const TemporaryDirectory folder_;
  const std::string file_ = folder_.path() / "items.csv";
};

TEST_F(PlanOffsets, PrintsTheInputWithOffsets) {
  const Outcome outcome = run("id,lower,upper,size\na,0,2,4\nb,1,3,6\nc,2,4,4\n", "10");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "id,lower,upper,size,offset\na,0,2,4,6\nb,1,3,6,0\nc,2,4,4,6\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(PlanOffsets, TakesColumnsInAnyOrderAndLineEndsOfBothKinds) {
  const Outcome outcome = run("size,upper,id,lower\r\n5,20,x 1,-10\r\n\r\n0,3,y,3", "5");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "size,upper,id,lower,offset\n5,20,x 1,-10,0\n0,3,y,3,0\n");
  EXPECT_EQ(run("id,lower,upper,size\n", "5").out, "id,lower,upper,size,offset\n");
  EXPECT_EQ(run("\xEF\xBB\xBFid,lower,upper,size\n", "5").out, "id,lower,upper,size,offset\n");
}

TEST_F(PlanOffsets, FillsAHardInstanceToItsCapacity) {
  const auto items = cut_rectangle(5, 120, 50, 1024, 1024);
  std::string text = "id,lower,upper,size\n";
  for (std::size_t i = 0; i < items.size(); ++i)
    text += fmt::format("{},{},{},{}\n", i, items[i].lifetime.begin, items[i].lifetime.end,
                        items[i].bytes);
  const Outcome outcome = run(text, "1048576");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);
  std::vector<std::int64_t> offsets;
  while (std::getline(lines, line)) offsets.push_back(std::stoll(line.substr(line.rfind(',') + 1)));
  EXPECT_EQ(placement_fault(items, offsets, 1048576, 1), "");

  const Outcome smaller = run(text, "1048575");
  EXPECT_EQ(smaller.exit_code, 1);
  EXPECT_EQ(smaller.out, "");
  EXPECT_THAT(smaller.err, HasSubstr("1048576 are in use at once, the capacity is 1048575"));
}

TEST_F(PlanOffsets, RefusesFilesThatAreNoInstanceNamingTheLine) {
  EXPECT_THAT(refusal(""), HasSubstr("items.csv:1: expected a header with the columns id, lower, "
                                     "upper and size, got an empty file"));
  EXPECT_THAT(refusal("id,lower,size\n0,1,2\n"),
              HasSubstr("items.csv:1: the column upper is missing"));
  EXPECT_THAT(refusal("id,lower,upper,size,alignment\n"), HasSubstr("got 'alignment'"));
  EXPECT_THAT(refusal("id,lower,upper,size,size\n"), HasSubstr("the column size appears twice"));
  const std::string header = "id,lower,upper,size\n0,0,1,5\n";
  EXPECT_THAT(refusal(header + "1,0,1\n"), HasSubstr("items.csv:3: expected 4 fields, got 3"));
  EXPECT_THAT(refusal(header + "1,0,1,-4\n"), HasSubstr("items.csv:3: expected size >= 0, got -4"));
  EXPECT_THAT(refusal(header + "1,5,4,1\n"),
              HasSubstr("items.csv:3: expected lower <= upper, got 5 and 4"));
  EXPECT_THAT(refusal(header + "1,0,1,4.5\n"),
              HasSubstr("items.csv:3: size: expected a 64-bit integer, got '4.5'"));
  EXPECT_THAT(refusal(header + "1,0,99999999999999999999,4\n"),
              HasSubstr("items.csv:3: upper: expected a 64-bit integer, got '9999"));
  EXPECT_THAT(refusal(header + "0,0,1,4\n"), HasSubstr("items.csv:3: the id '0' appears twice"));
  EXPECT_THAT(refusal(header + "1,0,1,4611686018427387904\n"),
              HasSubstr("items.csv:3: the sum of sizes exceeds 2^62"));
  EXPECT_THAT(refusal(std::string("\x7f"
                                  "ELF\0\1\2\n\xff\xfe",
                                  10)),
              HasSubstr("items.csv:1: "));
}

TEST_F(PlanOffsets, RefusesWrongArguments) {
  const Outcome no_capacity = run_binary({"plan", "--offsets", file_});
  EXPECT_EQ(no_capacity.exit_code, 2);
  EXPECT_THAT(no_capacity.err, HasSubstr("--offsets needs --capacity N"));
  const Outcome negative = run("id,lower,upper,size\n", "-3");
  EXPECT_EQ(negative.exit_code, 2);
  EXPECT_THAT(negative.err, AllOf(HasSubstr("--capacity"), HasSubstr("'-3'")));
  const Outcome missing =
      run_binary({"plan", "--offsets", folder_.path() / "none.csv", "--capacity", "3"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("none.csv"));
}

}  // namespace
}  // namespace anabatic::testing
