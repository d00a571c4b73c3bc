// SPDX-License-Identifier: Apache-2.0
// What a launcher of many processes (mpirun, srun) says of this one, by environment variables.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace anabatic::comm {

struct LaunchedProcess {
  std::int32_t rank = 0, size = 1;
  std::string variable;  // that gave the size: "OMPI_COMM_WORLD_SIZE"
};

// Null where nothing says that a launcher started this process.
std::optional<LaunchedProcess> launched_process();

}  // namespace anabatic::comm
