// SPDX-License-Identifier: Apache-2.0
// Which probabilities of attention dropout keeps, as bits of keys. Forward and backward draw the
// same ones: none is stored.
#pragma once
#include <optional>

#include "kernels/cpu/attention/attention_buffers.h"
#include "kernels/cpu/attention/attention_rows.h"
#include "kernels/cpu/elementwise/dropout_draws.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// Bit k: the 16 bits of column k of a run of 32 columns are not below the threshold.
ANABATIC_INLINE std::uint32_t kept_of_run(const Words (&words)[kParts][kRuns], int run,
                                          std::uint32_t threshold) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_cmpge_epu16_mask(reinterpret_cast<__m512i>(words[0][run]),
                                 _mm512_set1_epi16(static_cast<std::int16_t>(threshold)));
#else
  using Elements = std::uint16_t __attribute__((vector_size(4 * kLanes)));
  std::uint32_t bits = 0;
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) {
    const auto kept = reinterpret_cast<Elements>(words[part][run]) >=
                      (Elements{} + static_cast<std::uint16_t>(threshold));
#if ANABATIC_ISA_LANES == 8
    // A byte of each: the pack takes the four quarters out of their order.
    const __m256i packed = _mm256_permute4x64_epi64(
        _mm256_packs_epi16(reinterpret_cast<__m256i>(kept), _mm256_setzero_si256()), 0xD8);
    bits |= (static_cast<std::uint32_t>(_mm256_movemask_epi8(packed)) & 0xFFFFu) << (16 * part);
#else
    for (int i = 0; i < 2 * kLanes; ++i)
      bits |= static_cast<std::uint32_t>(kept[i] != 0) << (2 * kLanes * part + i);
#endif
  }
  return bits;
#endif
}

// What probabilities keep, head by head.
class KeptKeys {
 public:
  // `draws` is an input of the call.
  KeptKeys(const TensorView& draws, std::uint64_t stream, double rate)
      : draws_(draws.as<const std::int32_t>(), stream, rate), stream_(stream) {}

  Draws of_head(std::int64_t head) const {
    Draws draws = draws_;
    draws.set_stream(stream_ + static_cast<std::uint64_t>(head));
    return draws;
  }

  // For row t of the call and keys [column, column + count) of its document, as words of 64.
  static void fill(const Draws& draws, std::int64_t t, std::int64_t column, std::int64_t count,
                   std::uint64_t* bits) {
    const std::uint32_t row = draws.first_row + static_cast<std::uint32_t>(t);
    const std::int64_t num_words = ceil_div(count, 64), end = column + count;
    std::fill_n(bits, num_words, 0);
    const auto put = [&](std::int64_t at, std::uint64_t word) {  // from bit `at` on
      const std::int64_t index = at >> 6, shift = at & 63;       // at may be negative
      if (index >= 0 && index < num_words) bits[index] |= word << shift;
      if (shift > 0 && index + 1 >= 0 && index + 1 < num_words)
        bits[index + 1] |= word >> (64 - shift);
    };
    for (std::int64_t block = column / spec::kDropoutColumns; block * spec::kDropoutColumns < end;
         ++block) {
      Words words[kParts][kRuns];
      draw_block(draws, row, block, words);
      static_assert(kRuns == 4 && spec::kDropoutColumns == 128);
      for (int half = 0; half < 2; ++half)
        put(block * spec::kDropoutColumns + 64 * half - column,
            kept_of_run(words, 2 * half, draws.threshold) |
                std::uint64_t{kept_of_run(words, 2 * half + 1, draws.threshold)} << 32);
    }
  }

 private:
  Draws draws_;
  std::uint64_t stream_;
};

// Whose probabilities a block of the forward drops: of rows from first_row on, and heads from
// first_head on. `keys` is null where it drops none.
struct KeptRows {
  const KeptKeys* keys;
  std::int64_t first_row, first_head;
};

// What the row tiles [first, last) of a block keep of the tile of keys [key, key + count), which
// begins with a block of columns.
template <class Block>
__attribute__((noinline)) void fill_kept(const Block& block, std::int64_t first, std::int64_t last,
                                         std::int64_t key, std::int64_t count) {
  static_assert(Block::kTileKeys % spec::kDropoutColumns == 0);
  const KeptBuffers& kept = block.buffers.kept;
  for (std::int64_t tile = first; tile < last; ++tile) {
    const TileRange& sees = block.range(tile);
    const std::int64_t end = std::min<std::int64_t>(sees.end, key + count);
    const std::int64_t skipped =
        std::max<std::int64_t>(sees.begin - key, 0) / spec::kDropoutColumns * spec::kDropoutColumns;
    if (key + skipped >= end) continue;
    const Draws draws =
        block.kept_rows.keys->of_head(block.kept_rows.first_head + tile / block.tiles_per_head);
    for (std::int64_t i = 0; i < kRows; ++i)
      KeptKeys::fill(draws, block.kept_rows.first_row + tile % block.tiles_per_head * kRows + i,
                     key + skipped, end - key - skipped,
                     kept.bits + (tile * kRows + i) % kStripRows * kept.words + skipped / 64);
  }
}

// Those of a call; none where it drops nothing. `first` is the place of its draws among the inputs.
inline std::optional<KeptKeys> kept_keys(const Arguments& args, const AttentionShape& shape,
                                         std::size_t first) {
  if (!shape.drops()) return std::nullopt;
  return KeptKeys(args.inputs[first], shape.dropout_stream, shape.dropout_rate);
}

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
