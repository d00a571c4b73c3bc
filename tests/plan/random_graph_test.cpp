// SPDX-License-Identifier: Apache-2.0
// Plans differ, results do not: random graphs under both planners, with and without poison.
#include <gtest/gtest.h>

#include <cmath>

#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

class RandomGraph : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomGraph, GivesEqualBitsUnderEveryPlannerAndPoison) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const ir::Graph forward = random_graph(GetParam());
  StepsOptions options{.seed = GetParam()};
  options.compile.only_kernels = "ref";
  options.compile.trivial_planners = true;
  const StepsResult want = run_steps(forward, options);
  ASSERT_FALSE(want.gradients.empty());
  for (float loss : want.losses) EXPECT_TRUE(std::isfinite(loss));
  for (bool trivial : {false, true})
    for (bool poison : {false, true}) {
      SCOPED_TRACE(std::string(trivial ? "trivial" : "default") + (poison ? " poisoned" : ""));
      options.compile.trivial_planners = trivial;
      options.executor.poison = poison;
      const StepsResult got = run_steps(forward, options);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.gradients, want.gradients);
      EXPECT_EQ(got.states, want.states);
      EXPECT_LE(got.peak_bytes, want.peak_bytes);
    }
}

TEST_P(RandomGraph, GivesEqualBitsWithoutOptionalPasses) {
  const ir::Graph forward = random_graph(GetParam());
  StepsOptions options{.seed = GetParam()};
  options.compile.only_kernels = "ref";
  const StepsResult want = run_steps(forward, options);
  options.compile.disabled_passes = {"common_subexpression", "dead_code"};
  const StepsResult got = run_steps(forward, options);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.gradients, want.gradients);
  EXPECT_EQ(got.states, want.states);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraph, ::testing::Range<std::uint64_t>(0, 24));

}  // namespace
}  // namespace anabatic::testing
