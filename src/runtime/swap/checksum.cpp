// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/checksum.h"

#include <cstring>

namespace anabatic::runtime::swap {
namespace {

using Row = std::uint64_t (*)(const std::byte*, std::int64_t, std::int64_t);

Row widest_row() {
#ifdef ANABATIC_SWAP_X86
  if (__builtin_cpu_supports("avx2")) return checksum_avx2;
#endif
  return checksum_portable;
}

}  // namespace

std::uint64_t checksum_portable(const std::byte* data, std::int64_t words, std::int64_t first) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i * kWordBytes, sizeof word);
    sum += kernels::word_sum(word, first + i);
  }
  return sum;
}

std::uint64_t checksum(const std::byte* data, std::int64_t words, std::int64_t first) {
  static const Row row = widest_row();
  return row(data, words, first);
}

}  // namespace anabatic::runtime::swap
