// SPDX-License-Identifier: Apache-2.0
// The command `anabatic` as a function.
#pragma once
#include <string>
#include <vector>

#include "anabatic/export.h"

namespace anabatic {

// Runs `anabatic ARGUMENTS...` in this process, once: it prints, catches signals while it trains,
// and closes standard output at its end. Returns the exit code: 0; 1 after an error, which it has
// printed; 2 for a mistake in the arguments; 3 if memory.budget cannot be kept.
ANABATIC_API int run_command_line(const std::vector<std::string>& arguments);

}  // namespace anabatic
