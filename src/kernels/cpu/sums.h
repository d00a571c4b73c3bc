// SPDX-License-Identifier: Apache-2.0
// How long sums are cut: docs/internals/numerics.md has the bounds that follow.
#pragma once
#include <cstdint>

namespace anabatic::kernels::cpu {

// Most terms that one f32 accumulator sums. Such a block starts from zero and is then added to the
// sum of the blocks before it. That is one rounding for each block, in addition, not for each term.
inline constexpr std::int64_t kMostSumTerms = 512;

// Elements of a row that four vectors of accumulators sum side by side, before a double adds them
// to those before: even vectors of four lanes get half of kMostSumTerms each.
inline constexpr std::int64_t kSumElements = 4096;

}  // namespace anabatic::kernels::cpu
