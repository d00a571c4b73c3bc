// SPDX-License-Identifier: Apache-2.0
// Which hardware threads share a physical core (SMT), by hwloc.
#pragma once
#include <string>
#include <vector>

namespace anabatic::device {

struct PhysicalCores {
  std::vector<int> hardware_threads;  // the first of each core, ascending, then the others
  int num_siblings = 0;               // so many of the last share a core with an earlier one
};

// The cores of the hardware threads in `mask`. A thread that hwloc does not know counts as a core.
// `synthetic` is for tests: a machine as hwloc describes one, "core:4 pu:2"; empty: this machine.
PhysicalCores physical_cores(const std::vector<int>& mask, const std::string& synthetic = {});

}  // namespace anabatic::device
