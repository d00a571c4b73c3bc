// SPDX-License-Identifier: Apache-2.0
// What `check precision` reports: int8 is further from fp32 than bf16 is, and both are nearer than
// another micro-batch. Units that are kept in bf16 have the errors of bf16. `gradients` gives those
// of the run's products, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/tiny_run.h"
#include "train/gradients.h"
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

// The bytes of the gradients of experts' down projections.
std::string gradients_of_tokens(RunConfig run, const std::string& precision,
                                const TemporaryDirectory& folder) {
  run.train.precision = precision;
  const std::vector<std::int64_t> ids = [] {
    std::vector<std::int64_t> all(4 * 64);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i * 7 % 13);
    return all;
  }();
  const std::filesystem::path tokens = folder.path() / "tokens.safetensors",
                              output = folder.path() / "gradients.safetensors";
  auto writer = io::SafetensorsWriter::single_file(
      tokens, {{"input_ids", DType::kInt64, {4, 64}}, {"labels", DType::kInt64, {4, 64}}});
  for (const char* name : {"input_ids", "labels"})
    writer.write(name, std::as_bytes(std::span(ids)));
  writer.finish();
  write_gradients(run, tokens, output);
  const auto file = io::SafetensorsDirectory::open(output);
  std::string bytes;
  for (const auto& [name, entry] : file.entries())
    if (name.ends_with("w2.weight"))
      bytes.append(reinterpret_cast<const char*>(entry.data.data()), entry.data.size());
  return bytes;
}

TEST(PrecisionCheck, GradientsOfTokensAreInThePrecisionThatIsAskedFor) {
  const TemporaryDirectory folder;
  RunConfig run = wide_run(folder);
  const std::string bf16 = gradients_of_tokens(run, "bf16", folder),
                    int8 = gradients_of_tokens(run, "int8", folder);
  EXPECT_FALSE(bf16.empty());
  EXPECT_NE(int8, bf16);
  run.precision.int8.fallback = 0;
  EXPECT_NE(gradients_of_tokens(run, "int8", folder), int8);
  run.precision.keep = {{"attention", "bf16"}, {"experts", "bf16"}};
  EXPECT_EQ(gradients_of_tokens(run, "int8", folder), bf16);
}

}  // namespace
}  // namespace anabatic::train
