// SPDX-License-Identifier: Apache-2.0
// `plan --offsets FILE.csv --capacity N`: places the buffers of a file in an arena.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "cli/verb.h"

namespace anabatic::cli {

// The verb's work: prints the placement, or says on standard error why there is none and returns 1.
int plan_offsets(const Invocation& invocation);

struct OffsetsFound {
  std::string csv;     // the file's rows and a column `offset`; empty when there is no placement
  std::string reason;  // of there being none
};

// `text` of a CSV file: a header naming the columns id, lower, upper and size in any order, then a
// row a buffer, alive in [lower, upper). Offsets lie in [0, capacity - size], in any multiple of 1.
// InvalidArgument "FILE:LINE: ..." for what is no such file.
OffsetsFound find_offsets(std::string_view text, const std::filesystem::path& file,
                          std::int64_t capacity, double seconds);

}  // namespace anabatic::cli
