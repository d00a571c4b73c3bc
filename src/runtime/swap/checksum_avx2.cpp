// SPDX-License-Identifier: Apache-2.0
// Compiled for that instruction set, by which the header chooses its vectors.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/swap/checksum.h"

namespace anabatic::runtime::swap {

std::uint64_t checksum_avx2(const std::byte* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

}  // namespace anabatic::runtime::swap
