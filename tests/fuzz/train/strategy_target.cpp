// SPDX-License-Identifier: Apache-2.0
// A strategy file gives sizes of keys, each once, or its problems are named.
#include <set>

#include "fuzz/fuzz_target.h"
#include "train/config/strategy_file.h"

using namespace anabatic;

namespace {

std::vector<train::StrategySize> read_sizes(const std::string& path) {
  std::vector<std::string> problems;
  std::vector<train::StrategySize> sizes = train::read_strategy(path, problems);
  std::string all;
  for (const std::string& problem : problems) {
    fuzz::require(problem.starts_with("parallel.strategy: "), "a problem that names its key");
    all += "\n  " + problem;
  }
  if (!problems.empty()) throw InvalidArgument("[parallel] the sizes of a file:" + all);
  return sizes;
}

void check(const std::vector<train::StrategySize>& sizes) {
  std::set<std::string> keys;
  for (const train::StrategySize& size : sizes) {
    fuzz::require(keys.insert(size.key).second, "one size a key");
    fuzz::require(size.key.starts_with("parallel."), "a key of the run config");
    fuzz::require(size.size >= 1, "at least one rank");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::read_file_or_refuse(data, size, read_sizes, check);
}
