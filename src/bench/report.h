// SPDX-License-Identifier: Apache-2.0
// Profiles and benchmark results as tables, JSON and traces.
#pragma once
#include <filesystem>
#include <string>

#include "bench/benchmark.h"
#include "bench/exchange_benchmark.h"
#include "bench/profile.h"

namespace anabatic::bench {

std::string to_table(const Profile& profile);
std::string to_table(const Result& result);
std::string to_table(const ExchangeResult& result);

// One JSON object on one line; a share without meaning is null.
std::string to_json(const Profile& profile);
std::string to_json(const Result& result);
std::string to_json(const ExchangeResult& result);
std::string to_json(const std::vector<Part>& parts, const Round& round);  // of --serve

// Chrome's trace format, gzipped. Each call is one complete event, named by its label, on the track
// of its segment; each step is one on a separate track. Perfetto and chrome://tracing open it.
// ResourceError naming the file if it cannot be written.
void write_trace(const Profile& profile, const std::filesystem::path& file);

}  // namespace anabatic::bench
