// SPDX-License-Identifier: Apache-2.0
#include "support/test_config.h"

#include <cstdlib>

#include "base/error.h"
#include "passes/pipelines.h"

namespace anabatic::testing {
namespace {

std::vector<std::string> optional_passes() {
  std::vector<std::string> names;
  for (const passes::Pass& pass : passes::training_pipeline())
    if (!pass.required) names.emplace_back(pass.name);
  return names;
}

}  // namespace

bool is_plain_test_config() {
  const char* variable = std::getenv("ANABATIC_TEST_CONFIG");
  const std::string value = variable != nullptr ? variable : "";
  ANABATIC_REQUIRE(value.empty() || value == "plain",
                   "[test] ANABATIC_TEST_CONFIG: expected plain, got '{}'", value);
  return !value.empty();
}

void apply_test_config(train::RunConfig& run) {
  if (!is_plain_test_config()) return;
  run.compiler.trivial_planners = true;
  run.compiler.poison = true;
  for (const std::string& pass : optional_passes()) run.compiler.disable_passes.push_back(pass);
}

std::vector<std::string> test_config_flags() {
  if (!is_plain_test_config()) return {};
  std::vector<std::string> flags{"--compiler.trivial_planners", "true", "--compiler.poison", "true",
                                 "--compiler.disable_passes"};
  for (std::string& pass : optional_passes()) flags.push_back(std::move(pass));
  return flags;
}

}  // namespace anabatic::testing
