// SPDX-License-Identifier: Apache-2.0
// Reads a run's directory for a page, whatever files it has. The run may be running, killed, or
// older than a file that is read here.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace anabatic::report {

// One JSON object: name, path, status, totals, series of numbers over steps, validations, experts,
// times, memory, config, environment, plan. InvalidArgument naming what is expected and what is
// there if `directory` is not a run's.
nlohmann::ordered_json read_run(const std::filesystem::path& directory);

}  // namespace anabatic::report
