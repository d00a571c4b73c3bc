// SPDX-License-Identifier: Apache-2.0
// `anabatic report`: the pictures of one run or of several side by side, as one HTML file that
// needs nothing else.
#pragma once
#include <filesystem>
#include <vector>

namespace anabatic::report {

// Reads the runs and writes `output`, whole or not at all. InvalidArgument where a directory is not
// a run's, ResourceError where a file cannot be read or written.
void write_report(const std::vector<std::filesystem::path>& runs,
                  const std::filesystem::path& output);

// Where `train` leaves the report of a run.
std::filesystem::path file_of(const std::filesystem::path& run);

}  // namespace anabatic::report
