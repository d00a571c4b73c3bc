// SPDX-License-Identifier: Apache-2.0
// The configurations that a suite runs under. ANABATIC_TEST_CONFIG names one. Test programs alone
// read it and hand it on as keys of the run config.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "train/run_config.h"

namespace anabatic::testing {

struct TestConfig {
  std::string name;
  std::vector<std::string> passes_off{};
  bool trivial_planners = false;
  bool poison = false;
};

// `default`, which changes nothing, `plain`, and `without_PASS` for each optional pass.
std::vector<TestConfig> test_configs();

// The one that is named, else `default`. InvalidArgument for an unknown name.
TestConfig test_config();

// Whether memory is planned by the trivial planners, which choose nothing. A test of choices runs
// with `trivial_planners = false` and the rest of the configuration.
bool plans_trivially();

// Whether a pass runs. InvalidArgument unless the training pipeline has it.
bool has_pass(std::string_view pass);

// Whether any pass runs that may be off.
bool has_optional_passes();

// Adds the configuration to what `run` asks of the compiler.
void apply_test_config(train::RunConfig& run);

// The same as KEY=VALUE, `compiler.poison=true`; empty for `default`.
std::vector<std::string> test_config_settings();

}  // namespace anabatic::testing
