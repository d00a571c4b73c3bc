// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "anabatic/error.h"
#include "base/text.h"
#include "ops/table.h"
#include "passes/pass_runner.h"
#include "passes/pipelines.h"
#include "unit/ir/fake_ops.h"
#include "unit/ir/random_graph.h"

namespace anabatic::passes {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

bool keep(ir::Graph&, const PassContext&) { return false; }
bool rename(ir::Graph& graph, const PassContext&) {
  graph.name += '+';
  return true;
}
bool rename_in_secret(ir::Graph& graph, const PassContext&) {
  graph.name += '+';
  return false;
}
bool boast(ir::Graph&, const PassContext&) { return true; }
bool spoil(ir::Graph& graph, const PassContext&) {
  graph.nodes[0].inputs.pop_back();
  return true;
}

const PassContext kContext{.find_op = ir::find_fake_op};

ir::Graph sample() {
  return ir::parse("graph \"g\" batch %0 \"x\": f32[2] %1: f32[2] = add(%0, %0) forward",
                   ir::find_fake_op);
}

template <class Kind>
std::string error_of(const std::vector<Pass>& passes, const RunnerOptions& options = {}) {
  ir::Graph graph = sample();
  try {
    run_passes(graph, passes, kContext, options);
  } catch (const Kind& error) {
    return error.what();
  }
  return "no error of this kind";
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "anabatic_runner_test") {
    std::filesystem::remove_all(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(PassRunner, ReportsEachPass) {
  ir::Graph graph = sample();
  const std::vector<Pass> passes{{.name = "keep", .run = keep},
                                 {.name = "rename", .run = rename},
                                 {.name = "spoil", .run = spoil}};
  const auto reports = run_passes(graph, passes, kContext, {.disabled = {"spoil"}});
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_FALSE(reports[0].changed);
  EXPECT_TRUE(reports[1].changed);
  EXPECT_TRUE(reports[2].skipped);
  EXPECT_EQ(graph.name, "g+");
}

TEST(PassRunner, DumpsTheInputAndEveryPassThatRan) {
  const Folder folder;
  ir::Graph graph = sample();
  const std::string input = ir::print(graph);
  const std::vector<Pass> passes{{.name = "keep", .run = keep},
                                 {.name = "skip_me", .run = spoil},
                                 {.name = "rename", .run = rename}};
  run_passes(graph, passes, kContext,
             {.disabled = {"skip_me"}, .dump_directory = (folder.path() / "deep").string()});
  EXPECT_EQ(read_file(folder.path() / "deep/00_input.ir"), input);
  EXPECT_EQ(read_file(folder.path() / "deep/01_keep.ir"), input);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "deep/02_skip_me.ir"));
  EXPECT_EQ(read_file(folder.path() / "deep/03_rename.ir"), ir::print(graph));
}

TEST(PassRunner, RunsAPassOfDecisionsOnlyWithDecisions) {
  const std::vector<Pass> passes{{.name = "rename", .of_decisions = true, .run = rename}};
  const spec::Decisions decisions;
  for (const bool has_decisions : {false, true}) {
    SCOPED_TRACE(has_decisions);
    const Folder folder;
    PassContext context = kContext;
    if (has_decisions) context.options.decisions = &decisions;
    ir::Graph graph = sample();
    const auto reports =
        run_passes(graph, passes, context, {.dump_directory = folder.path().string()});
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].name, "rename");
    EXPECT_EQ(reports[0].changed, has_decisions);
    EXPECT_FALSE(reports[0].skipped);
    EXPECT_EQ(graph.name, has_decisions ? "g+" : "g");
    EXPECT_EQ(std::filesystem::exists(folder.path() / "01_rename.ir"), has_decisions);
  }
}

TEST(PassRunner, UnwritableDumpsAreResourceErrors) {
  EXPECT_THAT(error_of<ResourceError>({{.name = "keep", .run = keep}},
                                      {.dump_directory = "/proc/anabatic_dump"}),
              HasSubstr("/proc/anabatic_dump"));
}

TEST(PassRunner, NeedsMustHold) {
  const Pass maker{.name = "maker", .establishes = {"made"}, .run = keep};
  const Pass breaker{.name = "breaker", .breaks = {"made"}, .run = keep};
  const Pass user{.name = "user", .needs = {"made"}, .run = keep};
  EXPECT_EQ(error_of<Error>({maker, user}), "no error of this kind");
  EXPECT_EQ(error_of<Error>({user}, {.facts = {"made"}}), "no error of this kind");
  EXPECT_EQ(error_of<InternalError>({user}),
            "[passes] user needs 'made', which is not established here");
  EXPECT_THAT(error_of<InternalError>({maker, breaker, user}), HasSubstr("user needs 'made'"));
  EXPECT_EQ(error_of<Error>({maker, breaker, maker, user}), "no error of this kind");
  EXPECT_THAT(error_of<InvalidArgument>({maker, user}, {.disabled = {"maker"}}),
              HasSubstr("user needs 'made', which maker establishes, but that pass is disabled"));
}

TEST(PassRunner, DisabledNamesMustBeOptionalPasses) {
  const std::vector<Pass> passes{{.name = "dead_code", .run = keep},
                                 {.name = "precision", .required = true, .run = keep}};
  EXPECT_THAT(error_of<InvalidArgument>(passes, {.disabled = {"dead_cod"}}),
              HasSubstr("got 'dead_cod'; nearest: 'dead_code'"));
  EXPECT_THAT(error_of<InvalidArgument>(passes, {.disabled = {"precision"}}),
              HasSubstr("got 'precision', which is required"));
}

TEST(PassRunner, ChangedMustBeHonest) {
  EXPECT_EQ(error_of<InternalError>({{.name = "boast", .run = boast}}),
            "[passes] boast says that the graph changed, but its hash is the same");
  EXPECT_EQ(error_of<InternalError>({{.name = "secret", .run = rename_in_secret}}),
            "[passes] secret says that the graph is unchanged, but its hash differs");
}

TEST(PassRunner, VerifiesAfterChangesAndShowsTheDump) {
  const Folder folder;
  const std::string error = error_of<InternalError>({{.name = "spoil", .run = spoil}},
                                                    {.dump_directory = folder.path().string()});
  EXPECT_THAT(error, StartsWith("[passes] after spoil: [verify] rule 'arity'"));
  EXPECT_THAT(error, HasSubstr("01_spoil.ir"));
  EXPECT_THAT(read_file(folder.path() / "01_spoil.ir"), HasSubstr("add(%0)"));
}

TEST(PassRunner, VerifiesTheInput) {
  ir::Graph graph = sample();
  graph.nodes[0].inputs.pop_back();
  EXPECT_THROW(run_passes(graph, {}, kContext), InternalError);
}

// The runner verifies after each change; the second round must find nothing to do.
TEST(Pipelines, CleaningPassesSettleOnRandomGraphs) {
  const std::vector<Pass> passes{*find_pass("common_subexpression"), *find_pass("dead_code")};
  int num_changed = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ir::Graph graph = ir::random_graph(seed);
    for (const PassReport& report : run_passes(graph, passes, kContext))
      num_changed += report.changed ? 1 : 0;
    for (const PassReport& report : run_passes(graph, passes, kContext))
      EXPECT_FALSE(report.changed) << report.name;
  }
  EXPECT_GT(num_changed, 150);  // of 200: the graphs do hold dead and equal nodes
}

TEST(Pipelines, EveryPassIsFoundAndItsNeedsAreEstablished) {
  for (const std::vector<Pass>& pipeline : {training_pipeline(), inference_pipeline()}) {
    std::set<std::string_view> facts;
    for (const Pass& pass : pipeline) {
      ASSERT_NE(find_pass(pass.name), nullptr) << pass.name;
      for (const std::string_view fact : pass.needs)
        EXPECT_EQ(facts.count(fact), 1u) << pass.name << " needs " << fact;
      for (const std::string_view fact : pass.breaks) facts.erase(fact);
      facts.insert(pass.establishes.begin(), pass.establishes.end());
    }
  }
}

// Rows of the table after a heading of ARCHITECTURE.md, by cell.
std::vector<std::vector<std::string>> rows_of(const std::string& heading) {
  std::istringstream text(
      read_file(std::filesystem::path(ANABATIC_SOURCE_DIR) / "ARCHITECTURE.md"));
  std::vector<std::vector<std::string>> rows;
  bool is_below = false;
  for (std::string line; std::getline(text, line);) {
    if (line == heading) is_below = true;
    if (!is_below || !line.starts_with('|')) {
      if (!rows.empty()) return rows;
      continue;
    }
    std::vector<std::string>& cells = rows.emplace_back();
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(cell);
  }
  return rows;
}

// The words in backticks.
std::vector<std::string> names_in(const std::string& cell) {
  std::vector<std::string> names;
  std::istringstream text(cell);
  for (std::string outside, name;
       std::getline(text, outside, '`') && std::getline(text, name, '`');)
    names.push_back(name);
  return names;
}

TEST(Architecture, ListsEveryPassInItsOrder) {
  const std::vector<Pass> training = training_pipeline(), inference = inference_pipeline();
  std::size_t next = 0;
  for (const std::vector<std::string>& row : rows_of("## Passes")) {
    ASSERT_EQ(row.size(), 3u);
    for (const std::string& name : names_in(row[0])) {
      ASSERT_LT(next, training.size()) << name;
      const Pass& pass = training[next++];
      EXPECT_EQ(name, pass.name);
      const bool is_both = std::any_of(inference.begin(), inference.end(),
                                       [&](const Pass& other) { return other.name == pass.name; });
      EXPECT_THAT(row[1], testing::HasSubstr(is_both ? "both" : "training")) << name;
      EXPECT_THAT(row[2], testing::HasSubstr(pass.required ? "required" : "optional")) << name;
    }
  }
  EXPECT_EQ(next, training.size());
}

// In a row of its own, or in the text of another's.
TEST(Architecture, ListsEveryOp) {
  std::set<std::string> rows, mentioned;
  for (const std::vector<std::string>& row : rows_of("## Ops"))
    for (std::size_t i = 0; i < row.size(); ++i)
      for (const std::string& name : names_in(row[i])) {
        mentioned.insert(name);
        if (i == 0) rows.insert(name);
      }
  for (const ir::OpSchema* schema : ops::all_ops()) {
    const std::string name(schema->name);
    EXPECT_TRUE(mentioned.contains(name)) << name;
    rows.erase(name);
  }
  EXPECT_THAT(rows, testing::IsEmpty());
}

}  // namespace
}  // namespace anabatic::passes
