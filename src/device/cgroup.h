// SPDX-License-Identifier: Apache-2.0
// The control groups of this process, version 1 or 2, and all above them, for whoever reads a limit
// there.
#pragma once
#include <filesystem>
#include <functional>
#include <string_view>

namespace anabatic::device {

// Where the system says what a process may have; other folders in tests.
struct SystemRoots {
  std::filesystem::path proc = "/proc", cgroup = "/sys/fs/cgroup";
};

enum class CgroupVersion { kOne, kTwo };

// Calls `visit` with the folder of each group that may limit `controller` ("memory", "cpu"): the
// process's own and all above it. In a container the folder that the system names may not be
// mounted: its parents are.
void visit_cgroups(const SystemRoots& roots, std::string_view controller,
                   const std::function<void(const std::filesystem::path&, CgroupVersion)>& visit);

}  // namespace anabatic::device
