// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "anabatic/error.h"
#include "anabatic/version.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "comm/launcher.h"
#include "comm/mpi_world.h"
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
                                 {"avx_vnni", "256-bit int8 products at four times the fp32 rate"},
                                 {"avx512f", "512-bit fp32 kernels"},
                                 {"avx512_vnni", "int8 products at four times the fp32 rate"},
                                 {"avx512_bf16", "bf16 products at twice the fp32 rate"},
                                 {"amx_bf16", "bf16 products in tile registers"}};

// Formats of products and whether this CPU multiplies in them; the others are stored alone.
void print_formats(const spec::DeviceSpec& spec) {
  const auto computed = [](bool is_native, const char* otherwise) {
    return is_native ? "computed natively" : otherwise;
  };
  print_output("fp32        computed natively\n");
  print_output("bf16        {}\n",
               computed(spec.has("avx512_bf16"), "stored; products widen it to fp32"));
  print_output("int8        {}\n", computed(spec.has("avx512_vnni") || spec.has("avx_vnni"),
                                            "computed by wider multiply-adds"));
  print_output("fp16        stored; products widen it to fp32\n");
}

std::string why(const spec::DeviceSpec& spec, const Feature& feature) {
  if (spec.has(feature.instruction_set)) return fmt::format("on   {}", feature.gives);
  const std::string limit = environment::max_isa();
  if (!limit.empty()) return fmt::format("off  ANABATIC_MAX_ISA={} (or the CPU lacks it)", limit);
  const bool is_amx = std::string_view(feature.instruction_set) == "amx_bf16";
  return is_amx ? "off  this CPU lacks it, or the system keeps it from programs (Linux before 5.16)"
                : "off  this CPU lacks it";
}

// Describes the directory where a run would put its scratch file: the current one by default.
std::string disk_of(train::RunConfig config) {
  constexpr std::int64_t kProbeBytes = std::int64_t{128} << 20;
  if (config.train.output.empty()) config.train.output = std::filesystem::current_path().string();
  const train::SwapPlace place = train::find_swap_place(config);
  if (!place.refusal.empty()) return fmt::format("off  {}", place.refusal);
  runtime::swap::SwapProbe probe;
  try {
    probe = runtime::swap::probe_swap({.directory = place.directory},
                                      std::min(kProbeBytes, place.free_bytes / 4));
  } catch (const ResourceError& error) {
    return fmt::format("off  {}", error.what());
  }
  try {
    train::store_disk_speed(place.directory,
                            {probe.read_bytes_per_second, probe.written_bytes_per_second});
  } catch (const Error& error) {  // the disk is usable without
    log_warning("[doctor] the measured speed of the disk cannot be stored: {}", error.what());
  }
  return fmt::format("{}: {:.2f} GB/s read, {:.2f} GB/s written", probe.description,
                     1e-9 * probe.read_bytes_per_second, 1e-9 * probe.written_bytes_per_second);
}

std::string spinning(const device::ThreadTeam& team, const device::CpuLimits& limits) {
  if (team.spins()) return "on   each thread has a whole core";
  return fmt::format("off  {}: idle threads sleep at once",
                     limits.waits_passively ? "OMP_WAIT_POLICY is PASSIVE"
                     : team.num_threads() > limits.num_threads()
                         ? "more threads than cores"
                         : "the CPU quota leaves a fraction of a core");
}

// To be called before there are threads. Outside a launcher, mpirun counts a slot a core of this
// machine, and those of a file of hosts, which nobody has named yet.
std::string mpi_of(const device::CpuLimits& limits) {
  const std::string library = comm::mpi_library();
  if (library.empty()) return "off  built without MPI (-DANABATIC_MPI=ON)";
  const comm::MpiProbe probe = comm::probe_mpi();
  if (!probe.refusal.empty()) return fmt::format("off  {}: {}", library, probe.refusal);
  const auto process = comm::launched_process();
  const std::string slots = process ? fmt::format("rank {} of {}, {} slots", process->rank,
                                                  process->size, probe.num_slots)
                                    : fmt::format("{} slots on this machine", limits.num_threads());
  return fmt::format("on   {}, thread level {}; {}", library, probe.thread_level, slots);
}

int run_doctor(const Invocation& invocation) {
  const train::RunConfig config = train::load_run_config("", invocation.overrides);
  const device::CpuLimits limits = device::cpu_limits();
  const std::string mpi = mpi_of(limits);
  device::ThreadTeam team(static_cast<int>(config.device.threads), limits);
  const spec::DeviceSpec spec = device::probe_cpu(team, true);
  print_output("anabatic    {}\n", kVersion);
  print_output("cpu         {}\n", spec.model);
  print_output("cores       {}; {} threads in the team\n", to_string(limits), spec.num_threads);
  print_output("caches      L1 {}, L2 {}, L3 {}\n", format_bytes(spec.l1_bytes),
               format_bytes(spec.l2_bytes), format_bytes(spec.l3_bytes));
  print_output("memory      {} available to this process\n",
               format_bytes(device::available_bytes()));
  print_output("bandwidth   {:.1f} GB/s copy (read + written), all threads\n",
               spec.copy_bytes_per_second * 1e-9);
  print_output("disk        {}\n", disk_of(config));
  print_output("peak fp32   {:.0f} GFLOP/s, all threads\n", spec.fp32_flops_per_second * 1e-9);
  print_output("peak bf16   {:.0f} GFLOP/s, all threads\n", spec.bf16_flops_per_second * 1e-9);
  print_output("peak int8   {:.0f} GOP/s, all threads\n", spec.int8_ops_per_second * 1e-9);
  for (const Feature& feature : kFeatures)
    print_output("{:<11} {}\n", feature.instruction_set, why(spec, feature));
  print_formats(spec);
  print_output("spinning    {}\n", spinning(team, limits));
  print_output("cuda        off  not built\n");
  print_output("mpi         {}\n", mpi);
  return 0;
}

}  // namespace

const Verb& doctor_verb() {
  static const Verb verb{"doctor", "what this machine has, which features are on or off, and why",
                         "",       {},
                         true,     run_doctor};
  return verb;
}

}  // namespace anabatic::cli
