// SPDX-License-Identifier: Apache-2.0
// `plan --offsets FILE.csv --capacity N`: places the buffers of a file in an arena.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "cli/verb.h"

namespace anabatic::cli {

// Runs `plan --offsets`: prints the placement, or prints on standard error why there is none and
// returns 1.
int plan_offsets(const Invocation& invocation);

struct OffsetsFound {
  std::string csv;     // the file's rows and a column `offset`; empty if there is no placement
  std::string reason;  // why there is none
};

// `text` of a CSV file: a header that names the columns id, lower, upper and size in any order,
// then one row for each buffer, which is alive in [lower, upper). Offsets are any integers in [0,
// capacity - size]. InvalidArgument "FILE:LINE: ..." for any other file.
OffsetsFound find_offsets(std::string_view text, const std::filesystem::path& file,
                          std::int64_t capacity, double seconds);

}  // namespace anabatic::cli
