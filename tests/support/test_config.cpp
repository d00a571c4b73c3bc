// SPDX-License-Identifier: Apache-2.0
#include "support/test_config.h"

#include <fmt/ranges.h>

#include <algorithm>
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

std::vector<TestConfig> test_configs() {
  const std::vector<std::string> passes = optional_passes();
  std::vector<TestConfig> configs{
      {.name = "default"},
      {.name = "plain", .passes_off = passes, .trivial_planners = true, .poison = true}};
  for (const std::string& pass : passes)
    configs.push_back({.name = "without_" + pass, .passes_off = {pass}, .poison = true});
  return configs;
}

TestConfig test_config() {
  const char* variable = std::getenv("ANABATIC_TEST_CONFIG");
  const std::string wanted = variable != nullptr && *variable != '\0' ? variable : "default";
  std::vector<std::string> names;
  for (const TestConfig& config : test_configs()) {
    if (config.name == wanted) return config;
    names.push_back(config.name);
  }
  throw InvalidArgument(fmt::format("[test] ANABATIC_TEST_CONFIG: expected one of {}, got '{}'",
                                    fmt::join(names, ", "), wanted));
}

bool plans_trivially() { return test_config().trivial_planners; }

bool has_pass(std::string_view pass) {
  ANABATIC_REQUIRE(passes::find_pass(pass) != nullptr,
                   "[test] has_pass: expected a pass of the training pipeline, got '{}'", pass);
  const std::vector<std::string> off = test_config().passes_off;
  return std::find(off.begin(), off.end(), pass) == off.end();
}

bool has_optional_passes() { return test_config().passes_off.size() < optional_passes().size(); }

void apply_test_config(train::RunConfig& run) {
  const TestConfig config = test_config();
  run.compiler.trivial_planners |= config.trivial_planners;
  run.compiler.poison |= config.poison;
  run.compiler.disable_passes.insert(run.compiler.disable_passes.end(), config.passes_off.begin(),
                                     config.passes_off.end());
}

std::vector<std::string> test_config_settings() {
  const TestConfig config = test_config();
  std::vector<std::string> settings;
  if (config.trivial_planners) settings.emplace_back("compiler.trivial_planners=true");
  if (config.poison) settings.emplace_back("compiler.poison=true");
  for (const std::string& pass : config.passes_off) settings.push_back("fusions." + pass + "=off");
  return settings;
}

}  // namespace anabatic::testing
