// SPDX-License-Identifier: Apache-2.0
// The memory of an adapter's run over frozen weights in each of their forms.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/peaks.h"

namespace anabatic::testing {
namespace {

TEST(AdapterMemory, IsWithinTwoPercentOfThePlan) {
  const TemporaryDirectory folder;
  train::RunConfig run = tiny_run(
      folder.path(), kTinySinks +
                         R"(, "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 512,
                            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
                            "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 4)");
  run.data.train = {write_tiny_tokens(folder.path(), "rows", 100, 3)};
  run.data.sequence_length = 512;
  run.train.steps = 2;
  run.train.micro_batch_size = 1;
  run.train.precision = "bf16";
  run.device.calibrate = false;
  run.memory.budget = 0;
  run.lora.targets = {"attention", "experts"};
  for (const char* base : {"auto", "int8", "mxfp4"}) {
    run.lora.base = base;
    run.train.output = folder.path() / base;
    const auto file = folder.path() / "run.yaml";
    write_file_atomically(file, train::to_yaml(run));
    const Peaks peaks = peaks_of({"train", file});
    EXPECT_LE(std::abs(peaks.measured - peaks.predicted), peaks.predicted / 50)
        << base << ": " << peaks.measured << " for " << peaks.predicted;
  }
}

}  // namespace
}  // namespace anabatic::testing
