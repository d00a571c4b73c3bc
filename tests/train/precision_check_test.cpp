// SPDX-License-Identifier: Apache-2.0
// What `check precision` reports: int8 is further from fp32 than bf16 is, and both are nearer than
// another micro-batch. Units that are kept in bf16 have the errors of bf16.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support/tiny_run.h"
#include "train/proof/precision.h"

namespace anabatic::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using testing::TemporaryDirectory;

// Wide enough for int8 products, with rows enough for those of weight gradients.
RunConfig wide_run(const TemporaryDirectory& folder) {
  RunConfig run = testing::tiny_run(
      folder.path(), R"("hidden_size": 64, "intermediate_size": 96, "num_local_experts": 2)");
  run.data.sequence_length = 64;
  run.train.micro_batch_size = 4;
  return run;
}

std::vector<std::string> names_of(const PrecisionReport& report) {
  std::vector<std::string> names;
  for (const GradientGroup& group : report.groups) names.push_back(group.name);
  return names;
}

GradientGroup group_of(const PrecisionReport& report, const std::string& name) {
  const auto group = std::ranges::find(report.groups, name, &GradientGroup::name);
  if (group == report.groups.end()) throw InvalidArgument("no group " + name);
  return *group;
}

TEST(PrecisionCheck, ComparesPrecisionsWithFp32AndWithTheNoiseOfBatches) {
  const TemporaryDirectory folder;
  const PrecisionReport report = check_precision(wide_run(folder));
  EXPECT_EQ(report.tokens, 4 * 64);
  EXPECT_THAT(report.precisions, ElementsAre("bf16", "int8"));
  ASSERT_EQ(report.losses.size(), 2u);
  EXPECT_NE(report.losses[0], report.fp32_loss);
  EXPECT_THAT(names_of(report),
              IsSupersetOf({"embedding", "attention.q", "experts.gate", "experts.down", "head"}));
  for (const char* name : {"experts.gate", "experts.up", "experts.down"}) {
    const GradientGroup group = group_of(report, name);
    EXPECT_EQ(group.num_elements, 2 * 2 * 64 * 96);  // layers, experts
    EXPECT_GT(group.errors[0], 0) << name;
    EXPECT_GT(group.errors[1], group.errors[0]) << name;
    EXPECT_GT(group.between_batches, group.errors[1]) << name;
  }
}

TEST(PrecisionCheck, KeepsUnitsThatTheRunKeeps) {
  const TemporaryDirectory folder;
  RunConfig run = wide_run(folder);
  run.precision.keep = {{"attention", "bf16"}, {"experts", "bf16"}, {"head", "bf16"}};
  const PrecisionReport report = check_precision(run);
  EXPECT_EQ(report.losses[1], report.losses[0]);
  for (const GradientGroup& group : report.groups)
    EXPECT_EQ(group.errors[1], group.errors[0]) << group.name;
}

TEST(PrecisionCheck, ComparesAnAdapterInBf16AndTakesNoPairs) {
  const TemporaryDirectory folder;
  RunConfig run = wide_run(folder);
  run.train.objective = "dpo";
  EXPECT_THROW(check_precision(run), Unsupported);
  run.train.objective = "lm";
  run.lora.targets = {"experts"};
  const PrecisionReport report = check_precision(run);
  EXPECT_THAT(report.precisions, ElementsAre("bf16"));
  EXPECT_FALSE(report.groups.empty());
}

}  // namespace
}  // namespace anabatic::train
