// SPDX-License-Identifier: Apache-2.0
// MFU is a share of what the machine can do: never above 1, and not known where the peak is not.
#include "train/utilization.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

TEST(Utilization, MeasuresAPeakAgainThatAStepBeats) {
  int measured = 0;
  Utilization utilization(100, [&] { return ++measured, 200.0; });
  EXPECT_EQ(utilization.of(50), 0.5);
  EXPECT_EQ(measured, 0);
  EXPECT_EQ(utilization.of(150), 0.75);
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(utilization.of(100), 0.5);
  EXPECT_EQ(utilization.of(200), 1.0);
  EXPECT_EQ(measured, 1);
}

TEST(Utilization, IsNotKnownWhereAStepBeatsEveryMeasurement) {
  int measured = 0, warnings = 0;
  const LogScope scope([&](Severity, const std::string&) { ++warnings; });
  Utilization utilization(100, [&] { return ++measured, 90.0; });
  for (int step = 0; step < 1000; ++step) EXPECT_FALSE(utilization.of(150).has_value());
  EXPECT_LE(measured, 16);  // takes no share of a long run
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(utilization.of(50), 0.5);
  EXPECT_FALSE(Utilization(0, [] { return 0.0; }).of(1).has_value());
}

TEST(MicroBatchFlops, CountTheHeadOfTokensWithALabel) {
  model::ModelConfig config;
  config.spec.hidden_size = 16;
  config.spec.vocab_size = 1000;
  config.counts = {.total = 32000,
                   .active = 32000,
                   .active_without_embedding_and_routers = 16000,
                   .attention_widths = {{0, 32}}};
  io::MicroBatch batch{.tokens = {1, 2, 3, 4}, .labels = {2, 3, 4, -100}};
  batch.unmasked_tokens = 3;
  const double all = micro_batch_flops(config, batch);
  batch.unmasked_tokens = 1;
  EXPECT_EQ(all - micro_batch_flops(config, batch), 6.0 * 2 * 16 * 1000);
}

}  // namespace
}  // namespace anabatic::train
