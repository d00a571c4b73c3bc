// SPDX-License-Identifier: Apache-2.0
// Profiles and benchmark results as tables, JSON and traces.
#pragma once
#include <filesystem>
#include <string>

#include "bench/benchmark.h"
#include "bench/profile.h"

namespace anabatic::bench {

std::string to_table(const Profile& profile);
std::string to_table(const Result& result);

// One JSON object on one line; a share that means nothing is null.
std::string to_json(const Profile& profile);
std::string to_json(const Result& result);
std::string to_json(const std::vector<Part>& parts, const Round& round);  // of --serve

// Chrome's trace format, gzipped: one complete event a call, named by its label, on the track of
// its segment; one a step on a track of its own. Perfetto and chrome://tracing open it.
// ResourceError naming the file when it cannot be written.
void write_trace(const Profile& profile, const std::filesystem::path& file);

}  // namespace anabatic::bench
