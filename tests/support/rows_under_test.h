// SPDX-License-Identifier: Apache-2.0
// Which kernel rows a test binary runs. One that brings emulated rows (emulated/rows.cpp) has its
// own answer.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::testing {

// Those that rows ask for, as DeviceSpec::instruction_sets names them.
std::vector<std::string> instruction_sets();

bool is_under_test(std::string_view row);

}  // namespace anabatic::testing
