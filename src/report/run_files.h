// SPDX-License-Identifier: Apache-2.0
// A run's directory read for a page, whatever of it is there: also of a run that is at work, was
// killed, or was made before a file that is read here existed.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace anabatic::report {

// One JSON object: name, path, status, totals, series of numbers over steps, validations, experts,
// times, memory, config, environment, plan. InvalidArgument naming what is expected and what is
// there where `directory` is not a run's.
nlohmann::ordered_json read_run(const std::filesystem::path& directory);

}  // namespace anabatic::report
