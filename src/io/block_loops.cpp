// SPDX-License-Identifier: Apache-2.0
#include "io/block_loops.h"

#include "base/environment.h"

namespace anabatic::io {
namespace {

const BlockLoops& widest_loops() {
#ifdef ANABATIC_IO_X86
  const std::string limit = environment::max_isa();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && limit != "portable" && limit != "avx2") return kAvx512Loops;
  if (__builtin_cpu_supports("avx2") && limit != "portable") return kAvx2Loops;
#endif
  return kPortableLoops;
}

}  // namespace

const BlockLoops& block_loops() {
  static const BlockLoops& loops = widest_loops();
  return loops;
}

}  // namespace anabatic::io
