// SPDX-License-Identifier: Apache-2.0
// The configurations of the suite: each optional pass off by itself, and names that are none.
#include "support/test_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "anabatic/error.h"
#include "passes/pipelines.h"
#include "support/scoped_variable.h"

namespace anabatic::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr const char* kVariable = "ANABATIC_TEST_CONFIG";

TEST(TestConfigs, HaveEachOptionalPassOffByItselfAndAllAtOnce) {
  std::set<std::string> optional;
  for (const passes::Pass& pass : passes::training_pipeline())
    if (!pass.required) optional.emplace(pass.name);
  ASSERT_FALSE(optional.empty());
  for (const std::string& off : optional) {
    const ScopedVariable variable(kVariable, "without_" + off);
    for (const passes::Pass& pass : passes::training_pipeline())
      EXPECT_EQ(has_pass(pass.name), pass.name != off) << pass.name << " without " << off;
    EXPECT_FALSE(plans_trivially());
    EXPECT_TRUE(has_optional_passes());
  }
  const ScopedVariable variable(kVariable, "plain");
  for (const passes::Pass& pass : passes::training_pipeline())
    EXPECT_EQ(has_pass(pass.name), pass.required) << pass.name;
  EXPECT_TRUE(plans_trivially());
  EXPECT_FALSE(has_optional_passes());
}

TEST(TestConfigs, AreTheSameAsMembersOfARunAndAsSettings) {
  for (const TestConfig& config : test_configs()) {
    const ScopedVariable variable(kVariable, config.name);
    train::RunConfig run;
    apply_test_config(run);
    train::Overrides settings;
    for (const std::string& setting : test_config_settings())
      settings[setting.substr(0, setting.find('='))] = {setting.substr(setting.find('=') + 1)};
    const train::RunConfig other = train::load_run_config("", settings);
    EXPECT_EQ(other.compiler.trivial_planners, run.compiler.trivial_planners) << config.name;
    EXPECT_EQ(other.compiler.poison, run.compiler.poison) << config.name;
    EXPECT_EQ(other.fusions.off, std::set<std::string>(run.compiler.disable_passes.begin(),
                                                       run.compiler.disable_passes.end()))
        << config.name;
  }
}

TEST(TestConfigs, ChangeNothingByDefault) {
  const ScopedVariable variable(kVariable, "");
  EXPECT_EQ(test_config().name, "default");
  EXPECT_THAT(test_config_settings(), IsEmpty());
}

TEST(TestConfigs, OfAnUnknownNameAreRefusedWithTheKnownOnes) {
  const ScopedVariable variable(kVariable, "planned");
  EXPECT_THAT([] { test_config(); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("expected one of default, plain, without_"),
                        HasSubstr("without_dead_code"), HasSubstr("got 'planned'"))));
}

TEST(TestConfigs, KnowThePassesOfThePipelineAlone) {
  EXPECT_THAT([] { has_pass("fuse_everything"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got 'fuse_everything'")));
}

}  // namespace
}  // namespace anabatic::testing
