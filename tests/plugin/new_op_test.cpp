// SPDX-License-Identifier: Apache-2.0
// What `anabatic new-op` writes is built with every warning an error, and passes check-op as it is.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) names.insert(fs::relative(entry.path(), folder));
  return names;
}

class NewOp : public ::testing::TestWithParam<const char*> {
 protected:
  // Runs a command that must succeed; returns what it prints.
  std::string expect_success(const std::string& command) const {
    const fs::path log = folder_.path() / "log.txt";
    const int status = std::system(fmt::format("{} > '{}' 2>&1", command, log.string()).c_str());
    std::string text = read_file(log);
    EXPECT_EQ(status, 0) << command << "\n" << text;
    return text;
  }

  const TemporaryDirectory folder_;
};

TEST_P(NewOp, WritesAProjectThatPassesItsTest) {
  const std::string language = GetParam();
  const fs::path project = folder_.path() / "a project";
  const Outcome written =
      run_binary({"new-op", "test", "--language", language, "--directory", project});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_EQ(names_in(project),
            (std::set<std::string>{"CMakeLists.txt", "README.md", "include/anabatic/plugin.h",
                                   "test." + language, "test_torch.py", "train.yaml"}));
  EXPECT_EQ(read_file(project / "include/anabatic/plugin.h"),
            read_file(ANABATIC_SOURCE_DIR "/include/anabatic/plugin.h"));
  for (const std::string& name : names_in(project)) {
    if (name == "include/anabatic/plugin.h") continue;
    for (const char* mark : {"@NAME@", "@SOURCE@", "@LANGUAGE@", "@STANDARD@"})
      EXPECT_THAT(read_file(project / name), Not(HasSubstr(mark))) << name;
  }

  const fs::path build = project / "build";
  expect_success(
      fmt::format("'{}' -S '{}' -B '{}' -G '{}' -DCMAKE_{}_FLAGS='-Wall -Wextra "
                  "-Wpedantic -Werror' -DANABATIC='{}'",
                  ANABATIC_CMAKE, project.string(), build.string(), ANABATIC_GENERATOR,
                  language == "c" ? "C" : "CXX", ANABATIC_BINARY_DIR "/anabatic"));
  expect_success(fmt::format("'{}' --build '{}'", ANABATIC_CMAKE, build.string()));
  EXPECT_THAT(expect_success(fmt::format("'{}' -E chdir '{}' '{}' --no-tests=error --verbose",
                                         ANABATIC_CMAKE, build.string(), ANABATIC_CTEST)),
              HasSubstr("1 ops checked, 0 failed"));
}

INSTANTIATE_TEST_SUITE_P(Languages, NewOp, ::testing::Values("c", "cpp"));

TEST(NewOpRefuses, WhatIsNoNewName) {
  const TemporaryDirectory folder;
  const std::string directory = folder.path() / "project";
  for (const auto& [name, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"MyOp", "expected lower case letters, digits and _"},
           {"2fold", "got '2fold'"},
           {"../op", "got '../op'"},
           {"rms_norm", "the engine has an op rms_norm"},
           {"swiglu", "the engine calls an activation swiglu"}}) {
    const Outcome outcome = run_binary({"new-op", name, "--directory", directory});
    EXPECT_EQ(outcome.exit_code, 2) << name;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  const Outcome outcome =
      run_binary({"new-op", "my_op", "--language", "rust", "--directory", directory});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--language: expected c or cpp, got 'rust'"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(NewOpRefuses, WhatItWouldOverwriteOrCannotReach) {
  const TemporaryDirectory folder;
  const fs::path directory = folder.path() / "project";
  fs::create_directory(directory);
  std::ofstream(directory / "mine") << "kept";
  Outcome outcome = run_binary({"new-op", "my_op", "--directory", directory.string() + "/"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("project/ exists"));
  outcome = run_binary({"new-op", "my_op", "--directory", directory / "missing" / "project"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("missing is none"));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"project/mine"});
}

}  // namespace
}  // namespace anabatic::testing
