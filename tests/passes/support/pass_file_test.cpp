// SPDX-License-Identifier: Apache-2.0
// The driver itself, with planted faults.
#include "passes/support/pass_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "anabatic/error.h"
#include "base/text.h"
#include "ops/table.h"
#include "passes/support/line_diff.h"

namespace anabatic::passes {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGraph = "graph \"g\"\n  batch %0 \"x\": f32[2]\n";

bool rename(ir::Graph& graph, const PassContext&) {
  if (graph.name == "renamed") return false;
  graph.name = "renamed";
  return true;
}
bool grow(ir::Graph& graph, const PassContext&) {
  graph.name += '+';
  return true;
}
bool refuse(ir::Graph&, const PassContext&) { throw InvalidArgument("[refuse] not this graph"); }

const Pass kRename{.name = "rename", .run = rename};
const Pass kGrow{.name = "grow", .run = grow};
const Pass kRefuse{.name = "refuse", .run = refuse};

PassFile file(std::string expected) {
  PassFile result;
  result.context.find_op = ops::find_op;
  result.input = kGraph;
  result.expected = std::move(expected);
  return result;
}

TEST(PassFile, AcceptsTheExpectedGraph) {
  EXPECT_EQ(check_pass_file(kRename, file("graph \"renamed\" batch %7 \"x\": f32[2]")), "");
}

TEST(PassFile, ShowsTheDifference) {
  const std::string wrong = check_pass_file(kRename, file(kGraph));
  EXPECT_THAT(wrong, HasSubstr("- graph \"g\""));
  EXPECT_THAT(wrong, HasSubstr("+ graph \"renamed\""));
  EXPECT_THAT(wrong, HasSubstr("    batch %0"));
}

TEST(PassFile, SeesASecondChangeUnlessLifted) {
  PassFile growing = file("graph \"g+\" batch %0 \"x\": f32[2]");
  EXPECT_THAT(check_pass_file(kGrow, growing), HasSubstr("a second run changes it"));
  growing.is_idempotent = false;
  EXPECT_EQ(check_pass_file(kGrow, growing), "");
}

TEST(PassFile, ComparesErrors) {
  PassFile failing = file("not this");
  failing.expects_error = true;
  EXPECT_EQ(check_pass_file(kRefuse, failing), "");
  EXPECT_THAT(check_pass_file(kRename, failing), HasSubstr("got none"));
  failing.expected = "something else";
  EXPECT_THAT(check_pass_file(kRefuse, failing), HasSubstr("got '[refuse] not this graph'"));
}

TEST(PassFile, ReadsOptionsAndRefusesOtherForms) {
  const auto path = std::filesystem::temp_directory_path() / "anabatic_pass_file_test.ir";
  write_file_atomically(
      path,
      "# Why.\n# option precision=bf16\n# option with_update=no\n"
      "# option idempotent=no\n# ---- input\ngraph\n# ---- expected error\nwhy\n");
  const PassFile read = read_pass_file(path);
  EXPECT_EQ(read.context.options.precision, spec::Precision::kBf16);
  EXPECT_FALSE(read.context.options.with_update);
  EXPECT_FALSE(read.is_idempotent);
  EXPECT_TRUE(read.expects_error);
  EXPECT_EQ(read.input, "graph\n");
  EXPECT_EQ(read.expected, "why\n");
  for (const char* bad :
       {"", "# ---- input\ngraph\n", "# option colour=red\n# ---- input\ngraph\n",
        "# option precision=fp8\n# ---- input\ngraph\n# ---- expected\ngraph\n"}) {
    write_file_atomically(path, bad);
    EXPECT_THROW(read_pass_file(path), InvalidArgument) << bad;
  }
  std::filesystem::remove(path);
}

TEST(LineDiff, KeepsCommonLines) {
  EXPECT_EQ(line_diff("a\nb\nc\n", "a\nx\nc\nz\n"), "  a\n- b\n+ x\n  c\n+ z\n");
  EXPECT_EQ(line_diff("", ""), "");
}

}  // namespace
}  // namespace anabatic::passes
