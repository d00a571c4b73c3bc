// SPDX-License-Identifier: Apache-2.0
// The configuration that a suite runs under. ANABATIC_TEST_CONFIG=plain: optional passes off,
// trivial planners, poisoned arenas. Test programs alone read it and hand it on as `compiler` keys.
#pragma once
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::testing {

// InvalidArgument for another value than plain or none.
bool is_plain_test_config();

// Adds the configuration to what `run` asks of the compiler.
void apply_test_config(train::RunConfig& run);

// The same as flags of the binary, `--compiler.poison true ...`; empty for no configuration.
std::vector<std::string> test_config_flags();

}  // namespace anabatic::testing
