// SPDX-License-Identifier: Apache-2.0
#include "support/rows_under_test.h"

#include "device/amx.h"
#include "device/topology.h"

namespace anabatic::testing {

// The compiler's probe wants its names as literals.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back("avx2");
  if (__builtin_cpu_supports("fma")) sets.push_back("fma");
  if (device::has_avx_vnni()) sets.push_back("avx_vnni");
  if (__builtin_cpu_supports("f16c")) sets.push_back("f16c");
  if (__builtin_cpu_supports("avx512f")) sets.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) sets.push_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) sets.push_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) sets.push_back("avx512vl");
  if (__builtin_cpu_supports("avx512vnni")) sets.push_back("avx512_vnni");
  if (__builtin_cpu_supports("avx512bf16")) sets.push_back("avx512_bf16");
  if (device::may_use_amx()) sets.push_back("amx_bf16");
#endif
  return sets;
}

bool is_under_test(std::string_view) { return true; }

}  // namespace anabatic::testing
