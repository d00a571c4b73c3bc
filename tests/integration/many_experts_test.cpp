// SPDX-License-Identifier: Apache-2.0
// The memory of a model of 24,576 expert matrices: names and shapes of tensors are a tenth of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "support/peaks.h"

namespace anabatic::testing {
namespace {

TEST(ManyExperts, TakeWhatThePlanSaysAndKeepABudget) {
  const TemporaryDirectory folder;
  train::RunConfig run = tiny_run(folder.path(),
                                  "\"num_hidden_layers\": 64, \"num_local_experts\": 128, "
                                  "\"hidden_size\": 32, \"intermediate_size\": 16");
  run.train.steps = 1;
  run.train.micro_batch_size = 1;
  run.device.threads = 1;
  run.device.calibrate = false;
  run.memory.budget = 0;
  const auto file = folder.path() / "run.yaml";
  write_file_atomically(file, train::to_yaml(run));
  const auto is_near = [](const Peaks& peaks) {
    const std::int64_t most = std::max<std::int64_t>(peaks.predicted / 50, std::int64_t{16} << 20);
    return std::abs(peaks.measured - peaks.predicted) <= most;
  };
  const Peaks drawn = peaks_of({"train", file});
  EXPECT_TRUE(is_near(drawn)) << drawn.measured << " for " << drawn.predicted;
  // From its own checkpoint, within the least that the plan of it takes.
  const std::string checkpoint = folder.path() / "run/step-00000001";
  const auto again = [&](const std::string& output, const std::string& budget) {
    return peaks_of({"train", file, "--model.path", checkpoint, "--model.init", "pretrained",
                     "--train.output", folder.path() / output, "--memory.budget", budget});
  };
  const Peaks loaded = again("second", "none");
  EXPECT_TRUE(is_near(loaded)) << loaded.measured << " for " << loaded.predicted;
  const std::int64_t budget = loaded.predicted * 9 / 10;
  EXPECT_LE(again("third", std::to_string(budget)).measured, budget);
}

}  // namespace
}  // namespace anabatic::testing
