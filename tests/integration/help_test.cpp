// SPDX-License-Identifier: Apache-2.0
// What the binary says about itself, and that it is all of the keys and nothing else.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <sstream>

#include "base/text.h"
#include "support/run_binary.h"
#include "train/config/key_verbs.h"

namespace anabatic::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kVerbs{"bench",     "doctor", "evaluate", "generate",
                                      "gradients", "help",   "info",     "plan",
                                      "profile",   "report", "tokenize", "train"};

// Runs what must succeed; returns standard output.
std::string output_of(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_binary(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The keys that a text lists as flags, each at the beginning of a line.
std::set<std::string> listed_keys(const std::string& help) {
  std::set<std::string> keys;
  for (const std::string& line : lines_of(help))
    if (line.starts_with("  --") && line.find('.') < line.find(' ', 2))
      keys.insert(line.substr(4, line.find_first_of(" ,", 4) - 4));
  return keys;
}

TEST(Help, SaysWhatTheBinaryIsWhenItStandsAlone) {
  const std::string text = output_of({});
  EXPECT_THAT(text, HasSubstr("trains mixture-of-experts language models"));
  const std::vector<std::string> lines = lines_of(text);
  for (const std::string& verb : kVerbs)
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [&](const std::string& line) {
                              return line.starts_with(fmt::format("  {} ", verb)) &&
                                     line.size() > 14;
                            }),
              1)
        << verb;
  EXPECT_EQ(output_of({"--help"}), text);
  EXPECT_EQ(output_of({"help"}), text);
}

TEST(Help, BeginsWithCommandsOfTheseVerbsAndKeys) {
  int commands = 0;
  for (const std::string& line : lines_of(output_of({}))) {
    if (!line.starts_with("  anabatic ")) continue;
    ++commands;
    std::istringstream words(line);
    std::string word, verb;
    words >> word >> verb;
    const std::string help = output_of({verb, "--help"});
    while (words >> word) {
      if (word.starts_with("--")) {
        EXPECT_THAT(help, HasSubstr(fmt::format("  {} ", word)));
      }
    }
  }
  EXPECT_EQ(commands, 3);
}

TEST(Help, ListsTheKeysThatTheVerbReadsAndNoOthers) {
  for (const std::string& verb : kVerbs) {
    const std::string help = output_of({verb, "--help"});
    EXPECT_EQ(help, output_of({"help", verb}));
    std::set<std::string> want;
    for (const train::ConfigKey& key : train::config_keys())
      if (train::reads_key(verb, key.name)) want.insert(key.name);
    EXPECT_EQ(listed_keys(help), want) << verb;
  }
  const std::string generate = output_of({"generate", "--help"});
  EXPECT_THAT(generate,
              AllOf(HasSubstr("--prompt"), HasSubstr("--generate.top_k"), HasSubstr("--model.path"),
                    HasSubstr("--device.threads"), Not(HasSubstr("--memory.")),
                    Not(HasSubstr("--optimizer.")), Not(HasSubstr("train.steps"))));
  EXPECT_THAT(output_of({"info", "--help"}), Not(HasSubstr("--KEY")));
}

TEST(Help, SaysTypeValuesDefaultAndOneSentenceOfEachKey) {
  const std::vector<std::string> lines = lines_of(output_of({"train", "--help"}));
  const auto at = [&](const std::string& line) {
    const auto found = std::find(lines.begin(), lines.end(), line);
    EXPECT_NE(found, lines.end()) << line;
    return found == lines.end() ? "" : *(found + 1);
  };
  EXPECT_EQ(
      at("  --train.steps  integer (>= 0), default 100"),
      "      Optimizer steps of the whole run. After a resume, the steps before it count too.");
  at("  --train.precision  word (auto | adaptive | bf16 | fp16 | fp32 | int8 | mixed), default "
     "auto");
  at("  --data.train  list of text, default empty");
  at("  --optimizer.betas  list of numbers (two in [0, 1)), default [0.9, 0.95]");
  at("  --memory.budget  bytes (auto | none | such as 6GiB or 500MB), default auto");
  at("  --compiler.dump, --dump  text, default empty");
  EXPECT_THAT(lines, ::testing::Contains("optimizer: the optimizer and its schedule"));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  for (const train::ConfigKey& key : train::config_keys()) {
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(key.help.front()))) << key.name;
    EXPECT_TRUE(key.help.ends_with('.')) << key.name;
    EXPECT_FALSE(key.type.empty()) << key.name;
    EXPECT_NE(train::section_title(key.name.substr(0, key.name.find('.'))), "") << key.name;
    EXPECT_FALSE(train::verbs_reading(key.name).empty()) << key.name;
  }
}

TEST(Help, IsThePageOfKeys) {
  EXPECT_EQ(read_file(ANABATIC_KEYS_PAGE), output_of({"help", "--markdown"}))
      << "The table of keys differs from its page. Write the page anew:\n"
         "  build/release/anabatic help --markdown > docs/reference/keys.md\n"
         "and the typed configuration:\n  tools/print_config build/release/anabatic";
}

TEST(Help, PointsFromWrongArgumentsToItself) {
  const auto failure = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(failure({"help", "evaluat"}), HasSubstr("got 'evaluat'; did you mean evaluate?"));
  EXPECT_THAT(failure({"--hlp"}), HasSubstr("[anabatic] expected one of the verbs"));
  EXPECT_THAT(failure({"help", "train", "--markdown"}), HasSubstr("expected a verb or --markdown"));
  EXPECT_THAT(failure({"gradients", "model"}),
              AllOf(HasSubstr("[gradients] --tokens is required"),
                    HasSubstr("`anabatic gradients --help` lists its options and keys")));
}

TEST(Help, RefusesKeysThatTheVerbDoesNotRead) {
  const Outcome outcome =
      run_binary({"generate", "--prompt", "x", "--memory.swap_slice", "5", "--plan", "file"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("[generate] expected keys that generate reads"),
                    HasSubstr("--memory.swap_slice: only read by train, plan, profile, bench"),
                    HasSubstr("--plan: only read by train, plan, profile, bench")));
}

}  // namespace
}  // namespace anabatic::testing
