// SPDX-License-Identifier: Apache-2.0
// Errors about the content of files: all problems of a file in one, with names that come from files
// made safe to print.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io {

// A name from a file, short and without control characters.
std::string shown(std::string_view name);

// "[FORMAT] WHERE: N problems" with the first fifty of them, a line each.
std::string problem_text(std::string_view format, std::string_view where,
                         const std::vector<std::string>& problems);
// InvalidArgument with that text, if there is any problem.
void throw_if_any(std::string_view format, std::string_view where,
                  const std::vector<std::string>& problems);

}  // namespace anabatic::io
