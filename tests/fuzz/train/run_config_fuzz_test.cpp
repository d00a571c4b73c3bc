// SPDX-License-Identifier: Apache-2.0
// Broken run configs with a fixed budget: each is read or refused with a clear error, without a
// large allocation.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "anabatic/error.h"
#include "base/philox.h"
#include "support/tiny_run.h"
#include "train/run_config.h"
#include "unit/io/allocations.h"

namespace anabatic::train {
namespace {

constexpr std::uint64_t kSeed = 20240609;
constexpr std::size_t kMaxRequest = std::size_t{4} << 20;

class RunConfigFuzz : public ::testing::Test {
 protected:
  // True when the text is a config. Anything but that or InvalidArgument fails the test.
  bool reads(const std::string& text) {
    return reads(text, [&] { return load_run_config(file_, {}); });
  }
  bool reads_strategy(const std::string& text) {
    return reads(text, [&] { return load_run_config({}, {{"parallel.strategy", {file_}}}); });
  }

 private:
  bool reads(const std::string& text, const std::function<RunConfig()>& read) {
    std::filesystem::remove(file_);  // some file systems flush a file that is written anew in place
    std::ofstream(file_) << text;
    io::reset_largest_allocation();
    bool is_read = false;
    try {
      const RunConfig config = read();
      EXPECT_EQ(to_yaml(config), to_yaml(config));
      is_read = true;
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("[config] ")) << error.what();
      EXPECT_LT(std::string(error.what()).size(), 100000u + 64 * text.size());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\nfor\n" << text.substr(0, 2000);
    }
    EXPECT_LT(io::largest_allocation_bytes(), kMaxRequest) << text.substr(0, 2000);
    return is_read;
  }

  const testing::TemporaryDirectory folder_;
  const std::filesystem::path file_ = folder_.path() / "run.yaml";
};

std::string mutate(std::string text, std::uint64_t round) {
  static constexpr const char* kParts[] = {
      "{",   "}",    "[",           "]",     ": ",    "\n",   "  ",   "- ",
      "&a ", "*a",   "!!binary ",   "\"",    "'",     "|\n",  ">",    "#",
      "%",   "\t",   "99999999999", "-1",    "1e400", ".inf", "null", "<<: *a",
      "?",   "\x80", ",",           "---\n", "!"};
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::size_t>(random_below(kSeed, round, draw++, bound));
  };
  const std::size_t edits = 1 + below(4);
  for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
    const std::size_t place = below(text.size());
    switch (below(5)) {
      case 0:
        text.resize(place);
        break;
      case 1:
        text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
        break;
      case 2:
        text.insert(place, text.substr(below(text.size()), below(40)));
        break;
      case 3:
        text.erase(place, below(20) + 1);
        break;
      default:
        text.insert(place, kParts[below(std::size(kParts))]);
    }
  }
  return text;
}

TEST_F(RunConfigFuzz, MutatedConfigsAreReadOrRefused) {
  RunConfig config;
  config.data.train = {"a", "b c"};
  const std::string whole[] = {
      to_yaml(config),
      "model: {path: m, init: random}\ndata: {train: [a, b], sequence_length: 16}\n"
      "train:\n  steps: 5\n  seed: 3\noptimizer: {betas: [0.9, 0.95], name: adamw}\n"};
  int num_read = 0;
  constexpr int kRounds = 1500;
  for (int round = 0; round < kRounds; ++round)
    num_read += reads(mutate(whole[round % 2], static_cast<std::uint64_t>(round)));
  EXPECT_GT(num_read, kRounds / 50);  // the mutations do not only break the YAML
  EXPECT_LT(num_read, kRounds);
}

TEST_F(RunConfigFuzz, MutatedStrategiesAreReadOrRefused) {
  const std::string whole =
      R"({"data_parallel": 4, "tensor_parallel": 1, "model_parallel": 1, "pipeline_parallel": 1,)"
      R"( "expert_parallel": 2, "context_parallel": 1, "tensor_parallel_mode": "row_split"})";
  ASSERT_TRUE(reads_strategy(whole));
  int num_read = 0;
  constexpr int kRounds = 1500;
  for (int round = 0; round < kRounds; ++round)
    num_read += reads_strategy(mutate(whole, static_cast<std::uint64_t>(round)));
  EXPECT_GT(num_read, 0);
  EXPECT_LT(num_read, kRounds);
  EXPECT_FALSE(reads_strategy(std::string(100000, '[')));
  EXPECT_FALSE(reads_strategy("{\"data_parallel\": " + std::string(100000, '9') + "}"));
}

TEST_F(RunConfigFuzz, AbsurdShapesAreRefused) {
  EXPECT_FALSE(reads(std::string(100000, '[')));
  EXPECT_FALSE(reads(std::string(100000, '{')));
  std::string nested;
  for (int i = 0; i < 2000; ++i) nested += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_FALSE(reads(nested));
  std::string bomb = "a0: &a0 {x: 1, y: 2}\n";  // each anchor doubles what the one before holds
  for (int i = 1; i < 40; ++i)
    bomb += fmt::format("a{0}: &a{0} {{x: *a{1}, y: *a{1}}}\n", i, i - 1);
  EXPECT_FALSE(reads(bomb));
  std::string list = "data: {train: [";
  for (int i = 0; i < 20000; ++i) list += "f, ";
  EXPECT_TRUE(reads(list + "g]}"));
  EXPECT_FALSE(reads(std::string("train: {steps: 5\0}", 18)));
  EXPECT_FALSE(reads(std::string(2 << 20, 'x')));
}

}  // namespace
}  // namespace anabatic::train
