// SPDX-License-Identifier: Apache-2.0
// Packed operands and a register tile of products for attention on bf16 tensors, on CPUs with
// VDPBF16PS. The depth of a product is counted in words, pairs of bf16.
//
// A left operand is words anywhere: word k of row i at i · row_stride + k · depth_stride. A right
// one is panels of 16 columns, [columns / 16, depth words, 16], whose words are pairs along a row
// ("across": of the transposed matrix), or pairs of rows.
#pragma once
#include "base/rounding.h"
#include "kernels/cpu/attention/attention_buffers.h"
#include "kernels/cpu/attention/attention_rows.h"
#include "kernels/cpu/words_avx512.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

static_assert(kLanes == kPairPanel);

// Panels of the widest register tile: 6 x 4 sums, four vectors on the right and one on the left.
constexpr int kPanels = 4;
static_assert(kPanels * kPairPanel == kPairScores);

// bf16 of one vector.
constexpr std::int64_t kPairLanes = 2 * kLanes;

template <int kCount>
using PairSums = Floats[kRows][kCount];

using Shorts = std::uint16_t __attribute__((vector_size(64)));

// Rows of this form serve tensors of bf16 alone.
template <class Body>
void with_operand_type(DType, Body&& body) {
  body(static_cast<BFloat16*>(nullptr));
}

// What a row of `count` more elements has of a vector; zeros beyond.
ANABATIC_INLINE __m512i load_pairs(const BFloat16* from, std::int64_t count) {
  if (count >= kPairLanes) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16(count > 0 ? (std::uint32_t{1} << count) - 1 : 0, from);
}

// 32 bf16, those of `first` first.
ANABATIC_INLINE __m512i to_pairs(Floats first, Floats second) {
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// Words of the same 16 elements of two rows, from kStart on.
template <int kStart>
ANABATIC_INLINE __m512i interleave(__m512i even, __m512i odd) {
  Shorts index;
  for (int lane = 0; lane < kLanes; ++lane) {
    index[2 * lane] = static_cast<std::uint16_t>(kStart + lane);
    index[2 * lane + 1] = static_cast<std::uint16_t>(kPairLanes + kStart + lane);
  }
  return (__m512i)__builtin_shuffle((Shorts)even, (Shorts)odd, index);
}

// Rows [first, first + count) side by side, `words` apart, and zeros up to a whole register tile.
inline void copy_rows(const HeadRows<const BFloat16>& from, std::int64_t first, std::int64_t count,
                      std::int64_t words, Word* to) {
  for (std::int64_t i = 0; i < round_up(count, kRows); ++i) {
    const BFloat16* row = from.row(first + i);
    const std::int64_t width = i < count ? from.width : 0;
    for (std::int64_t j = 0; j < from.width; j += kPairLanes) {
      __builtin_prefetch(row + kPrefetchRows * from.stride + j);
      _mm512_store_si512(to + i * words + j / 2, load_pairs(row + j, width - j));
    }
  }
}

// Panels of pairs of rows [first, first + count), of `rows` rows each, from `first_row` of them on;
// rows from `count` up to a whole register tile become zero.
inline void pack_row_pairs(const HeadRows<const BFloat16>& from, std::int64_t first,
                           std::int64_t count, std::int64_t rows, Word* panels,
                           std::int64_t first_row = 0) {
  const std::int64_t panel = rows / 2 * kPairPanel;
  Word* to = panels + first_row / 2 * kPairPanel;
  for (std::int64_t i = 0; i < std::min(round_up(count, kRows), rows - first_row); i += 2) {
    const BFloat16 *even = from.row(first + i), *odd = even + from.stride;
    const std::int64_t even_width = i < count ? from.width : 0,
                       odd_width = i + 1 < count ? from.width : 0;
    Word* at = to + i / 2 * kPairPanel;
    for (std::int64_t j = 0; j < from.width; j += kPairLanes, at += 2 * panel) {
      __builtin_prefetch(even + kPrefetchRows * from.stride + j);
      __builtin_prefetch(odd + kPrefetchRows * from.stride + j);
      const __m512i x = load_pairs(even + j, even_width - j),
                    y = load_pairs(odd + j, odd_width - j);
      _mm512_store_si512(at, interleave<0>(x, y));
      _mm512_store_si512(at + panel, interleave<kLanes>(x, y));
    }
  }
}

// Both forms of rows [first, first + count): side by side, and as pairs of rows from `first_row` of
// panels of `rows` rows each. Rows from `count` up to a whole register tile become zero.
inline void pack_both(const HeadRows<const BFloat16>& from, std::int64_t first, std::int64_t count,
                      std::int64_t words, Word* side_by_side, std::int64_t rows, Word* panels,
                      std::int64_t first_row) {
  static_assert(kRows % 2 == 0);
  const std::int64_t panel = rows / 2 * kPairPanel;
  Word *to = side_by_side + first_row * words, *pairs = panels + first_row / 2 * kPairPanel;
  for (std::int64_t i = 0; i < round_up(count, kRows);
       i += 2, to += 2 * words, pairs += kPairPanel) {
    const BFloat16 *even = from.row(first + i), *odd = even + from.stride;
    const std::int64_t even_width = i < count ? from.width : 0,
                       odd_width = i + 1 < count ? from.width : 0;
    Word* at = pairs;
    for (std::int64_t j = 0; j < from.width; j += kPairLanes, at += 2 * panel) {
      __builtin_prefetch(even + kPrefetchRows * from.stride + j);
      __builtin_prefetch(odd + kPrefetchRows * from.stride + j);
      const __m512i x = load_pairs(even + j, even_width - j),
                    y = load_pairs(odd + j, odd_width - j);
      _mm512_store_si512(to + j / 2, x);
      _mm512_store_si512(to + words + j / 2, y);
      _mm512_store_si512(at, interleave<0>(x, y));
      _mm512_store_si512(at + panel, interleave<kLanes>(x, y));
    }
  }
}

// Panels across of rows [first, first + count), `words` deep and up to a whole register tile of
// scores: what lies beyond is zero.
inline void pack_across(const HeadRows<const BFloat16>& from, std::int64_t first,
                        std::int64_t count, std::int64_t words, Word* to) {
  for (std::int64_t i = 0; i < round_up(count, kPairScores); i += kPairPanel)
    for (std::int64_t j = 0; j < from.width; j += kPairLanes) {
      const std::int64_t rows = count - i, columns = from.width - j;
      const BFloat16* at = from.row(first + i) + j;
      for (int k = 0; k < kLanes; ++k) __builtin_prefetch(at + (kLanes + k) * from.stride);
      __m512i r[kLanes];
      if (rows >= kLanes && columns >= kPairLanes) {
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k) r[k] = _mm512_loadu_si512(at + k * from.stride);
      } else {
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k)
          r[k] = load_pairs(at + k * from.stride, k < rows ? columns : 0);
      }
      transpose_16x16(r);
      Word* panel = to + i * words + j / 2 * kPairPanel;
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) _mm512_store_si512(panel + k * kPairPanel, r[k]);
    }
}

// to[t] := factor · a row of sums.
inline void write_sums(const float* sums, float factor, const HeadRows<BFloat16>& to,
                       std::int64_t t) {
  for (std::int64_t j = 0; j < to.width; j += kPairLanes) {
    const Floats first = factor * load(sums + j), second = factor * load(sums + j + kLanes);
    BFloat16* at = to.row(t) + j;
    __builtin_prefetch(at + kPrefetchRows * to.stride, 1);
    const std::int64_t left = to.width - j;
    if (left >= kPairLanes) {
      _mm512_storeu_si512(at, to_pairs(first, second));
    } else {
      store(at, first, static_cast<int>(std::min<std::int64_t>(left, kLanes)));
      if (left > kLanes) store(at + kLanes, second, static_cast<int>(left - kLanes));
    }
  }
}

// sums += A · B over `depth` > 0 words; `panel` words from one panel of B to the next.
template <int kCount>
ANABATIC_INLINE void multiply_add_words(PairSums<kCount>& sums, const Word* a,
                                        std::int64_t row_stride, std::int64_t depth_stride,
                                        const Word* b, std::int64_t panel, std::int64_t depth) {
  do {
    __m512i right[kCount];
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) right[v] = _mm512_load_si512(b + v * panel);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m512i left = _mm512_set1_epi32(static_cast<int>(a[i * row_stride]));
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v)
        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], (__m512bh)left, (__m512bh)right[v]);
    }
    a += depth_stride;
    b += kPairPanel;
  } while (--depth > 0);
}

// What lies beyond the first kSumWords words of the depth, in blocks of so many.
inline constexpr std::int64_t kSumWords = kMostSumTerms / 2;
template <int kCount>
__attribute__((noinline, cold)) void add_more_words(PairSums<kCount>& sums, const Word* a,
                                                    std::int64_t row_stride, const Word* b,
                                                    std::int64_t panel, std::int64_t depth) {
  for (std::int64_t k = kSumWords; k < depth; k += kSumWords) {
    PairSums<kCount> block = {};
    multiply_add_words<kCount>(block, a + k, row_stride, 1, b + k * kPairPanel, panel,
                               std::min(depth - k, kSumWords));
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < kCount; ++v) sums[i][v] += block[i][v];
  }
}

// The same along the width of rows of A. No head is usually so wide that there are more words.
template <int kCount>
ANABATIC_INLINE void multiply_add_rows(PairSums<kCount>& sums, const Word* a,
                                       std::int64_t row_stride, const Word* b, std::int64_t panel,
                                       std::int64_t depth) {
  multiply_add_words<kCount>(sums, a, row_stride, 1, b, panel, std::min(depth, kSumWords));
  if (depth <= kSumWords) return;
  PairSums<kCount> all;  // a copy: a value with an address is not kept in a register
  std::memcpy(&all, &sums, sizeof all);
  add_more_words<kCount>(all, a, row_stride, b, panel, depth);
  std::memcpy(&sums, &all, sizeof all);
}

// C[kRows, 16 · kCount] = A · B, or +=, where the product is summed from zero and added once, over
// runs of the depth in words: A[i, k] at a[i · kRow + k · kDepth], rows of C `stride` apart.
template <int kCount, std::int64_t kRow, std::int64_t kDepth, bool kAdd>
__attribute__((noinline)) void multiply(const Word* a, const Word* b, std::int64_t panel,
                                        const DepthRun* runs, int num_runs, float* c,
                                        std::int64_t stride) {
  PairSums<kCount> sums = {};
  for (int r = 0; r < num_runs; ++r)
    multiply_add_words<kCount>(sums, a + runs[r].begin * kDepth, kRow, kDepth,
                               b + runs[r].begin * kPairPanel, panel, runs[r].end - runs[r].begin);
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      float* at = c + i * stride + v * kLanes;
      store(at, kAdd ? load(at) + sums[i][v] : sums[i][v]);
    }
}

// Calls body<kCount>() for as many panels as hold `columns` > 0 columns, at most four.
template <class Body>
ANABATIC_INLINE auto with_panels(std::int64_t columns, Body&& body) {
  switch (ceil_div(columns, kPairPanel)) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    default:
      return body.template operator()<4>();
  }
}

// 2^x with a relative error below 2^-13, a 32nd of what its rounding to bf16 adds: a minimax
// polynomial above the next lower whole number, 1 for x = 0. 0 far below, infinity far above.
ANABATIC_INLINE Floats fraction_of_exp2(Floats x) {
  const Floats rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Floats p = madd(broadcast(7.70670623e-2f), rest, broadcast(2.27644965e-1f));
  p = madd(p, rest, broadcast(6.95116818e-1f));
  return madd(p, rest, broadcast(1.0f));
}
ANABATIC_INLINE Floats exp2_roughly(Floats x) { return _mm512_scalef_ps(fraction_of_exp2(x), x); }
// 0 in other lanes.
ANABATIC_INLINE Floats exp2_roughly(Floats x, __mmask16 lanes) {
  return _mm512_maskz_scalef_ps(lanes, fraction_of_exp2(x), x);
}

// Bit i: key i of a register tile of scores lies within [begin, end), both counted from its first.
ANABATIC_INLINE std::uint64_t visible_keys(std::int64_t begin, std::int64_t end) {
  begin = std::max(begin, std::int64_t{0});
  end = std::min(end, kPairScores);
  return begin < end ? ~std::uint64_t{0} << begin & ~std::uint64_t{0} >> (kPairScores - end) : 0;
}
// The lanes of vector v.
ANABATIC_INLINE __mmask16 lanes_of(std::uint64_t keys, int v) {
  return static_cast<__mmask16>(keys >> (v * kLanes));
}

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
