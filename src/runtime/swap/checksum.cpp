// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/checksum.h"

#include <xxhash.h>

namespace anabatic::runtime::swap {
namespace {

using Row = std::uint64_t (*)(const std::byte*, std::int64_t);

Row widest_row() {
#ifdef ANABATIC_SWAP_X86
  if (__builtin_cpu_supports("avx2")) return checksum_avx2;
#endif
  return checksum_portable;
}

}  // namespace

std::uint64_t checksum_portable(const std::byte* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

std::uint64_t checksum(const std::byte* data, std::int64_t bytes) {
  static const Row row = widest_row();
  return row(data, bytes);
}

}  // namespace anabatic::runtime::swap
