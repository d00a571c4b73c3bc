// SPDX-License-Identifier: Apache-2.0
// Compiled for that instruction set.
#include <immintrin.h>

#include "runtime/swap/checksum.h"

namespace anabatic::runtime::swap {
namespace {

constexpr int kLanes = 4, kVectors = 4;  // vectors under way at once

std::uint64_t sum_of(__m256i x) {
  const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(pair)) +
         static_cast<std::uint64_t>(_mm_extract_epi64(pair, 1));
}

__m256i broadcast(std::uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }

}  // namespace

std::uint64_t checksum_avx2(const std::byte* data, std::int64_t words, std::int64_t first) {
  constexpr std::int64_t kRound = kLanes * kVectors;
  const std::uint64_t key = (static_cast<std::uint64_t>(first) + 1) * kernels::kWordKey;
  __m256i keys[kVectors], sums[kVectors] = {};
  for (int v = 0; v < kVectors; ++v) {
    const auto at = [&](int lane) {
      return static_cast<long long>(key + static_cast<std::uint64_t>(v * kLanes + lane) *
                                              kernels::kWordKey);
    };
    keys[v] = _mm256_setr_epi64x(at(0), at(1), at(2), at(3));
  }
  const __m256i step = broadcast(kRound * kernels::kWordKey);
  const std::int64_t whole = words / kRound * kRound;
  for (std::int64_t i = 0; i < whole; i += kRound)
    for (int v = 0; v < kVectors; ++v) {
      const __m256i x = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(data + (i + v * kLanes) * kWordBytes));
      const __m256i mixed = _mm256_xor_si256(x, keys[v]);
      const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
      sums[v] = _mm256_add_epi64(sums[v], _mm256_add_epi64(product, x));
      keys[v] = _mm256_add_epi64(keys[v], step);
    }
  std::uint64_t sum = checksum_portable(data + whole * kWordBytes, words - whole, first + whole);
  for (const __m256i& part : sums) sum += sum_of(part);
  return sum;
}

}  // namespace anabatic::runtime::swap
