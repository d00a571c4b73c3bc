// SPDX-License-Identifier: Apache-2.0
#include "device/topology.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <hwloc.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "device/amx.h"
#include "device/cpu_limits.h"
#include "device/probe.h"
#include "device/thread_team.h"

namespace anabatic::device {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

#if defined(__x86_64__)
// clang 14 has no __builtin_cpu_supports of these.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// What ANABATIC_MAX_ISA names, in its order. AVX-512 needs all before it but avx_vnni.
constexpr std::array<std::string_view, 7> kSets{"portable",    "avx2",        "avx_vnni", "avx512f",
                                                "avx512_vnni", "avx512_bf16", "amx_bf16"};
auto rank_of(std::string_view set) { return std::find(kSets.begin(), kSets.end(), set); }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Kernels of this set use F16C, too, which every CPU with AVX2 has.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2) found.emplace_back("avx2");
  if (avx2 && has_avx_vnni()) found.emplace_back("avx_vnni");
  if (avx512) found.emplace_back("avx512f");
  if (avx512 && __builtin_cpu_supports("avx512vnni")) found.emplace_back("avx512_vnni");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) found.emplace_back("avx512_bf16");
  if (!found.empty() && found.back() == "avx512_bf16" && may_use_amx())
    found.emplace_back("amx_bf16");
#endif
  const std::string limit = environment::max_isa();
  if (!limit.empty())
    std::erase_if(found, [&](const std::string& set) { return rank_of(set) > rank_of(limit); });
  return found;
}

void read_caches(spec::DeviceSpec& spec) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return;
  if (hwloc_topology_load(topology) == 0) {
    const auto size = [&](hwloc_obj_type_t type, std::int64_t& bytes) {
      const hwloc_obj_t object = hwloc_get_obj_by_type(topology, type, 0);
      if (object != nullptr && object->attr != nullptr && object->attr->cache.size > 0)
        bytes = static_cast<std::int64_t>(object->attr->cache.size);
    };
    size(HWLOC_OBJ_L1CACHE, spec.l1_bytes);
    size(HWLOC_OBJ_L2CACHE, spec.l2_bytes);
    size(HWLOC_OBJ_L3CACHE, spec.l3_bytes);
  }
  hwloc_topology_destroy(topology);
}

// Peaks are those of the machine. Runs that follow each other in a process would spend 0.2 s each
// on them.
ProbeResult measured_once(ThreadTeam& team, const spec::DeviceSpec& spec) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::vector<std::string>>, ProbeResult> results;
  const std::lock_guard lock(mutex);
  const std::pair key(team.num_threads(), spec.instruction_sets);
  if (const auto found = results.find(key); found != results.end()) return found->second;
  return results.emplace(key, probe(team, spec)).first->second;
}

}  // namespace

bool has_avx_vnni() {
#if defined(__x86_64__)
  constexpr unsigned kAvxVnni = 1u << 4;  // of leaf 7.1, EAX
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || a < 1) return false;  // the last subleaf
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
#else
  return false;
#endif
}

spec::DeviceSpec describe_cpu(int num_threads) {
  spec::DeviceSpec spec;
  spec.model = cpu_model();
  spec.num_threads = num_threads > 0 ? num_threads : cpu_limits().num_threads();
  spec.instruction_sets = instruction_sets();
  read_caches(spec);
  return spec;
}

spec::DeviceSpec probe_cpu(ThreadTeam& team, bool measure) {
  spec::DeviceSpec spec = describe_cpu(team.num_threads());
  if (!measure) return spec;
  const ProbeResult result = measured_once(team, spec);
  spec.fp32_flops_per_second = result.fp32_flops_per_second;
  spec.bf16_flops_per_second = result.bf16_flops_per_second;
  spec.int8_ops_per_second = result.int8_ops_per_second;
  spec.copy_bytes_per_second = result.copy_bytes_per_second;
  return spec;
}

}  // namespace anabatic::device
