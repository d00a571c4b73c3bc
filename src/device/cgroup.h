// SPDX-License-Identifier: Apache-2.0
// The control groups (cgroups) of this process, version 1 or 2, and their parents, to read limits
// from.
#pragma once
#include <filesystem>
#include <functional>
#include <string_view>

namespace anabatic::device {

// Where the system describes the limits of a process; tests use other folders.
struct SystemRoots {
  std::filesystem::path proc = "/proc", cgroup = "/sys/fs/cgroup";
};

enum class CgroupVersion { kOne, kTwo };

// Calls `visit` with the folder of each group that may limit `controller` ("memory", "cpu"): the
// process's own and its parents. In a container the folder that the system names may not be
// mounted, but its parents are.
void visit_cgroups(const SystemRoots& roots, std::string_view controller,
                   const std::function<void(const std::filesystem::path&, CgroupVersion)>& visit);

}  // namespace anabatic::device
