// SPDX-License-Identifier: Apache-2.0
// Ranks that train one adapter, over weights that each of them holds or that they share.
#include <gtest/gtest.h>

#include <cmath>

#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::training_state;

struct Layout {
  const char* name;
  std::int64_t ranks = 1, expert = 1;
};
constexpr Layout kOne{"one"}, kTwo{"two", 2}, kShared{"shared", 2, 2};

// A base with rows of whole blocks of MXFP4, which knows its data.
fs::path trained_base(const fs::path& folder) {
  RunConfig run = tiny_run(folder, R"("hidden_size": 32, "intermediate_size": 64)");
  run.train.steps = 60;
  run.optimizer.learning_rate = 1e-2;
  run.train.output = folder / "base";
  return Trainer(run).train().checkpoint;
}

// Two micro-batches a step, wherever they run.
RunConfig run_in(const Layout& layout, const fs::path& folder, const fs::path& base) {
  RunConfig run = tiny_run(folder);
  run.model.path = base;
  run.model.init = "pretrained";
  run.lora.targets = {"all", "router"};
  run.lora.rank = 4;
  run.parallel.local_ranks = layout.ranks;
  run.parallel.expert = layout.expert;
  run.train.gradient_accumulation_steps = 2 / layout.ranks;
  run.data.validation = run.data.train;
  run.train.output = folder / layout.name;
  return run;
}

void expect_near(double got, double want, DType dtype) {
  EXPECT_LE(std::abs(got - want), testing::loss_tolerance(want, dtype)) << got << " and " << want;
}
void expect_near(const TrainResult& got, const TrainResult& want, DType dtype) {
  ASSERT_TRUE(got.before && got.after && want.before && want.after);
  expect_near(got.before->loss, want.before->loss, dtype);
  expect_near(got.after->loss, want.after->loss, dtype);
}

TEST(LoraRanks, TrainAsOneDoes) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory folder;
    const fs::path base = trained_base(folder.path());
    const auto train = [&](const Layout& layout) {
      RunConfig run = run_in(layout, folder.path(), base);
      run.train.precision = precision;
      return Trainer(run).train();
    };
    const TrainResult one = train(kOne), two = train(kTwo), shared = train(kShared);
    EXPECT_LT(one.after->loss, one.before->loss) << precision;
    EXPECT_TRUE(training_state(two.checkpoint) == training_state(one.checkpoint)) << precision;
    EXPECT_EQ(two.after->loss, one.after->loss) << precision;
    // Rows of shared experts are weighted, and rounded, before they travel.
    expect_near(shared, one,
                std::string_view(precision) == "fp32" ? DType::kFloat32 : DType::kBFloat16);
  }
}

// The weights under an adapter are in no checkpoint, so each rank reads its own again.
TEST(LoraRanks, GoOnFromACheckpointOfAnyLayout) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  const auto train = [&](const Layout& layout, const fs::path& output) {
    RunConfig run = run_in(layout, folder.path(), base);
    run.train.save_every = 4;
    run.train.output = output;
    return Trainer(run).train();
  };
  const fs::path output = folder.path() / "run";
  const auto go_on = [&](const Layout& from, const Layout& to) {
    fs::remove_all(output);
    train(from, output);
    anabatic::testing::go_back_to(output, 4);
    return train(to, output);
  };
  const TrainResult whole = train(kOne, folder.path() / "whole");
  const auto want = training_state(whole.checkpoint);
  EXPECT_TRUE(training_state(go_on(kTwo, kOne).checkpoint) == want);
  EXPECT_TRUE(training_state(go_on(kTwo, kTwo).checkpoint) == want);
  for (const auto& [from, to] : {std::pair(kShared, kShared), {kShared, kTwo}, {kTwo, kShared}})
    expect_near(go_on(from, to).after->loss, whole.after->loss, DType::kFloat32);
}

TEST(LoraRanks, ShareQuantizedExperts) {
  for (const char* format : {"int8", "mxfp4"}) {
    const TemporaryDirectory folder;
    const fs::path base = trained_base(folder.path());
    const auto train = [&](const Layout& layout) {
      RunConfig run = run_in(layout, folder.path(), base);
      run.train.precision = "bf16";
      run.lora.base = format;
      return Trainer(run).train();
    };
    const TrainResult one = train(kOne), two = train(kTwo), shared = train(kShared);
    EXPECT_TRUE(training_state(two.checkpoint) == training_state(one.checkpoint)) << format;
    // What it knows is in its experts too.
    EXPECT_LT(one.before->loss, std::log(97.0) - 0.5) << format;
    expect_near(shared, one, DType::kBFloat16);
  }
}

}  // namespace
}  // namespace anabatic::train
