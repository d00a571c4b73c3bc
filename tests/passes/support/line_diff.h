// SPDX-License-Identifier: Apache-2.0
// A line diff for failure messages.
#pragma once
#include <string>
#include <string_view>

namespace anabatic::passes {

// Lines of both texts in order: "- " only in want, "+ " only in got, "  " in both.
std::string line_diff(std::string_view want, std::string_view got);

}  // namespace anabatic::passes
