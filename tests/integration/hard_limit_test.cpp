// SPDX-License-Identifier: Apache-2.0
// `anabatic train` under a hard limit of the system, sized from the plan's predicted peak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "base/json.h"
#include "base/text.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// A limit of what processes may take that are started while it exists.
class Limit {
 public:
  Limit(__rlimit_resource resource, std::int64_t bytes) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit limit{static_cast<rlim_t>(bytes), before_.rlim_max};
    ::setrlimit(resource_, &limit);
  }
  ~Limit() { ::setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

constexpr std::int64_t kStackBytes =
    kMiB;  // of a thread: the system's default is that of its limit

// Private writable memory, resident or not, of at most `data_bytes`: heap, mappings, stacks.
Outcome run_limited(const std::vector<std::string>& arguments, std::int64_t data_bytes) {
  std::optional<Process> process;
  {
    const Limit stack(RLIMIT_STACK, kStackBytes), data(RLIMIT_DATA, data_bytes);
    process.emplace(arguments);
  }
  return process->wait();
}

// Private writable memory of this process.
std::int64_t own_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmData:")) return std::stoll(line.substr(7)) * 1024;
  return 0;
}

// What the binary and its libraries map writable before they do anything; at least what this
// process does, which starts no other below that.
std::int64_t bytes_at_start() {
  std::int64_t fails = own_bytes() + kMiB, runs = 256 * kMiB;
  EXPECT_EQ(run_limited({"--version"}, runs).exit_code, 0);
  while (runs - fails > kMiB / 8) {
    const std::int64_t middle = (fails + runs) / 2;
    (run_limited({"--version"}, middle).exit_code == 0 ? runs : fails) = middle;
  }
  return runs;
}

class HardLimit : public ::testing::Test {
 protected:
  HardLimit() {
    train::RunConfig run = tiny_run(
        folder_.path(), "\"vocab_size\": 22000, \"hidden_size\": 256, \"intermediate_size\": 64");
    run.train.steps = 2;
    run.device.calibrate = false;
    file_ = folder_.path() / "run.yaml";
    write_file_atomically(file_, train::to_yaml(run));
  }

  std::int64_t predicted_peak() const {
    const Outcome outcome = run_binary({"plan", file_, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return parse_json(outcome.out)["peak_bytes"].get<std::int64_t>();
  }

  // What is mapped and never touched: stacks of the worker, the loader and one that comes and goes;
  // the ends of blocks that are aligned to huge pages.
  static std::int64_t not_resident() { return 3 * kStackBytes + 8 * 2 * kMiB; }

  const TemporaryDirectory folder_;
  std::string file_;
};

TEST_F(HardLimit, IsKeptByARunSizedFromItsPlan) {
  const std::int64_t peak = predicted_peak(), limit = peak + bytes_at_start() + not_resident();
  ASSERT_GT(peak, 10 * not_resident()) << "the limit would say little";
  const Outcome outcome = run_limited({"train", file_}, limit);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("measured peak"));
  // The limit is a limit: what the plan asks for does not fit into four fifths of it.
  const Outcome less = run_limited({"train", file_, "--train.resume", "never"}, limit * 4 / 5);
  EXPECT_EQ(less.exit_code, 1) << less.out;
  EXPECT_THAT(less.err, HasSubstr("memory"));
}

TEST_F(HardLimit, IsNotMetByABudgetThatIsRefused) {
  const std::int64_t peak = predicted_peak();
  const Outcome outcome =
      run_limited({"train", file_, "--memory.budget", std::to_string(peak / 2)}, peak);
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("memory.budget: this run needs"));
}

}  // namespace
}  // namespace anabatic::testing
