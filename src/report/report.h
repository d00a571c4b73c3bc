// SPDX-License-Identifier: Apache-2.0
// `anabatic report`: charts of one run or of several side by side, as one self-contained HTML file.
#pragma once
#include <filesystem>
#include <vector>

namespace anabatic::report {

// Reads the runs and writes `output` atomically. InvalidArgument if a directory is not a run's,
// ResourceError if a file cannot be read or written.
void write_report(const std::vector<std::filesystem::path>& runs,
                  const std::filesystem::path& output);

// The path where `train` writes the report of a run.
std::filesystem::path file_of(const std::filesystem::path& run);

}  // namespace anabatic::report
