// SPDX-License-Identifier: Apache-2.0
#include "device/cpu_limits.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "device/physical_cores.h"

namespace anabatic::device {
namespace {

std::vector<int> cores_of_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  if (cores.empty()) {
    const int count = static_cast<int>(std::thread::hardware_concurrency());
    for (int core = 0; core < std::max(count, 1); ++core) cores.push_back(core);
  }
  return cores;
}

// Microseconds of CPU time in a period of so many, as cores; nothing where there is no such limit.
std::optional<double> ratio(std::istream& quota, std::istream& period) {
  double time = 0, length = 0;
  if (!(quota >> time) || !(period >> length) || time <= 0 || length <= 0) return std::nullopt;
  return time / length;
}

std::optional<double> quota_of(const std::filesystem::path& group, CgroupVersion version) {
  if (version == CgroupVersion::kTwo) {  // "150000 100000", "max 100000"
    std::ifstream file(group / "cpu.max");
    return ratio(file, file);
  }
  std::ifstream quota(group / "cpu.cfs_quota_us"), period(group / "cpu.cfs_period_us");  // -1: none
  return ratio(quota, period);
}

}  // namespace

int CpuLimits::num_threads() const {
  const int count = num_physical_cores();
  return quota ? std::clamp(static_cast<int>(std::floor(*quota)), 1, count) : count;
}

bool CpuLimits::may_spin(int num_threads) const {
  if (waits_passively || num_threads > num_physical_cores()) return false;
  return !quota || (std::floor(*quota) == *quota && num_threads <= *quota);
}

CpuLimits cpu_limits(const SystemRoots& roots) {
  PhysicalCores found = physical_cores(cores_of_mask());
  CpuLimits limits{.cores = std::move(found.hardware_threads),
                   .quota = std::nullopt,
                   .num_siblings = found.num_siblings,
                   .waits_passively = environment::waits_passively()};
  visit_cgroups(roots, "cpu", [&](const std::filesystem::path& group, CgroupVersion version) {
    const auto quota = quota_of(group, version);
    if (quota && *quota < limits.quota.value_or(static_cast<double>(limits.cores.size())))
      limits.quota = quota;
  });
  return limits;
}

std::string to_string(const CpuLimits& limits) {
  return fmt::format(
      "{} by the affinity mask{}{}", limits.num_physical_cores(),
      limits.num_siblings > 0 ? fmt::format(" ({} hardware threads)", limits.cores.size()) : "",
      limits.quota ? fmt::format(", {:.3g} by the CPU quota of a cgroup", *limits.quota) : "");
}

}  // namespace anabatic::device
