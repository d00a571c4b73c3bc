// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "anabatic/error.h"
#include "anabatic/version.h"
#include "base/environment.h"
#include "base/text.h"
#include "cli/verb.h"
#include "device/cpu_limits.h"
#include "device/memory.h"
#include "device/thread_team.h"
#include "device/topology.h"
#include "runtime/swap/swap_probe.h"
#include "train/swap_tier.h"

namespace anabatic::cli {
namespace {

struct Feature {
  const char* instruction_set;
  const char* gives;
};

constexpr Feature kFeatures[] = {{"avx2", "256-bit fp32 kernels"},
                                 {"avx512f", "512-bit fp32 kernels"},
                                 {"avx512_bf16", "bf16 products at twice the fp32 rate"}};

std::string why(const spec::DeviceSpec& spec, const Feature& feature) {
  if (spec.has(feature.instruction_set)) return fmt::format("on   {}", feature.gives);
  const std::string limit = environment::max_isa();
  if (!limit.empty()) return fmt::format("off  ANABATIC_MAX_ISA={} (or the CPU lacks it)", limit);
  return "off  this CPU lacks it";
}

std::string disk_of(const train::RunConfig& config) {
  constexpr std::int64_t kProbeBytes = std::int64_t{128} << 20;
  try {
    const auto probe =
        runtime::swap::probe_swap({.directory = train::swap_directory(config)}, kProbeBytes);
    train::store_disk_speed(train::swap_directory(config),
                            {probe.read_bytes_per_second, probe.written_bytes_per_second});
    return fmt::format("{}: {:.2f} GB/s read, {:.2f} GB/s written", probe.description,
                       1e-9 * probe.read_bytes_per_second, 1e-9 * probe.written_bytes_per_second);
  } catch (const ResourceError& error) {
    return fmt::format("off  {}", error.what());
  }
}

std::string spinning(const device::ThreadTeam& team, const device::CpuLimits& limits) {
  if (team.spins()) return "on   a whole core for every thread";
  return fmt::format("off  {}: threads sleep at once", team.num_threads() > limits.num_threads()
                                                           ? "more threads than cores"
                                                           : "a part of a core");
}

int run(const Invocation& invocation) {
  const train::RunConfig config = train::load_run_config("", invocation.overrides);
  const device::CpuLimits limits = device::cpu_limits();
  device::ThreadTeam team(static_cast<int>(config.device.threads), limits);
  const spec::DeviceSpec spec = device::probe_cpu(team, true);
  fmt::print("anabatic    {}\n", kVersion);
  fmt::print("cpu         {}\n", spec.model);
  fmt::print("cores       {}; {} threads in the team\n", to_string(limits), spec.num_threads);
  fmt::print("caches      L1 {}, L2 {}, L3 {}\n", format_bytes(spec.l1_bytes),
             format_bytes(spec.l2_bytes), format_bytes(spec.l3_bytes));
  fmt::print("memory      {} available to this process\n", format_bytes(spec.tiers[0].bytes));
  fmt::print("bandwidth   {:.1f} GB/s copy (read + written), all threads\n",
             spec.tiers[0].bytes_per_second * 1e-9);
  fmt::print("disk        {}\n", disk_of(config));
  fmt::print("peak fp32   {:.0f} GFLOP/s, all threads\n", spec.fp32_flops_per_second * 1e-9);
  fmt::print("peak bf16   {:.0f} GFLOP/s, all threads\n", spec.bf16_flops_per_second * 1e-9);
  for (const Feature& feature : kFeatures)
    fmt::print("{:<11} {}\n", feature.instruction_set, why(spec, feature));
  fmt::print("spinning    {}\n", spinning(team, limits));
  fmt::print("cuda        off  not built\n");
  fmt::print("mpi         off  not built\n");
  return 0;
}

}  // namespace

const Verb& doctor_verb() {
  static const Verb verb{
      "doctor", "what this machine has, and what is on or off and why", "", {}, true, run};
  return verb;
}

}  // namespace anabatic::cli
