// SPDX-License-Identifier: Apache-2.0
#include "base/environment.h"

#include <cstdlib>

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
  for (const char* known : {"", "portable", "avx2", "avx512f", "avx512_bf16"})
    if (value == known) return value;
  throw InvalidArgument(fmt::format(
      "[environment] ANABATIC_MAX_ISA: expected portable, avx2, avx512f or avx512_bf16, got '{}'",
      value));
}

std::string cache_directory() {
  if (std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache;
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache";
}

}  // namespace anabatic::environment
