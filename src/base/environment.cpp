// SPDX-License-Identifier: Apache-2.0
#include "base/environment.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace anabatic::environment {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::string max_isa() {
  const std::string value = variable("ANABATIC_MAX_ISA");
  for (const char* known :
       {"", "portable", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"})
    if (value == known) return value;
  throw InvalidArgument(fmt::format(
      "[environment] ANABATIC_MAX_ISA: expected portable, avx2, avx_vnni, avx512f, avx512_vnni, "
      "avx512_bf16 or amx_bf16, got "
      "'{}'",
      value));
}

std::string cache_directory() {
  if (std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache;
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache";
}

bool waits_passively() {
  const std::string policy = variable("OMP_WAIT_POLICY");
  return std::ranges::equal(policy, std::string_view("passive"),
                            [](unsigned char a, char b) { return std::tolower(a) == b; });
}

std::vector<Launcher> launchers() {
  std::vector<Launcher> result;
  for (const auto& [size, rank] : {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   {"PMI_SIZE", "PMI_RANK"},
                                   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}})
    result.push_back({size, variable(size), variable(rank)});
  return result;
}

}  // namespace anabatic::environment
