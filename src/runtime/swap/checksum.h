// SPDX-License-Identifier: Apache-2.0
// The checksum of a block: a sum over its words of what each gives at its place, so that parts of a
// block can be summed apart, in any order, by whoever has them in a cache.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/byte_watch.h"

namespace anabatic::runtime::swap {

using kernels::kWordBytes;

// The word_sums (kernels/byte_watch.h) of `words` words of 64 bits, the first one word `first` of
// its region, with the widest vectors that the processor has; all give the same.
std::uint64_t checksum(const std::byte* data, std::int64_t words, std::int64_t first);

// Its rows, for tests.
std::uint64_t checksum_portable(const std::byte* data, std::int64_t words, std::int64_t first);
std::uint64_t checksum_avx2(const std::byte* data, std::int64_t words, std::int64_t first);

}  // namespace anabatic::runtime::swap
