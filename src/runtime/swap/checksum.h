// SPDX-License-Identifier: Apache-2.0
// The checksum of a block: a sum over its words, each weighted by its position. So parts of a block
// can be summed separately, in any order, by a thread that has them in its cache.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/byte_watch.h"

namespace anabatic::runtime::swap {

using kernels::kWordBytes;

// The word_sums (kernels/byte_watch.h) of `words` words of 64 bits, the first of which is word
// `first` of its region. Uses the widest vectors of the processor; all variants give the same sum.
std::uint64_t checksum(const std::byte* data, std::int64_t words, std::int64_t first);

// The variants, for tests.
std::uint64_t checksum_portable(const std::byte* data, std::int64_t words, std::int64_t first);
std::uint64_t checksum_avx2(const std::byte* data, std::int64_t words, std::int64_t first);

}  // namespace anabatic::runtime::swap
