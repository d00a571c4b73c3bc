// SPDX-License-Identifier: Apache-2.0
// The workspace of each thread of an attention call: operands in fp32 (attention_tiles.h has their
// layout), or words of two bf16 (attention_pairs.h).
#pragma once
#include "kernels/cpu/attention/attention_lists.h"
#include "kernels/cpu/attention/attention_shape.h"

namespace anabatic::kernels::cpu {

// Floats between rows of scores; no power of two, for they are also read along columns.
inline constexpr std::int64_t kScoreStride = kFloatBlocking.keys + 16,
                              kGradientStride = kFloatBlocking.gradient_keys + 16;

// What the rows of a block see of a block of keys, where a call has lists; else null.
struct MaskBuffers {
  std::int64_t words = 0;
  std::uint64_t* masks = nullptr;  // [rows, words]
  TileMasks* tiles = nullptr;      // of register tiles of rows

  MaskBuffers(const AttentionShape& shape, std::int64_t rows, std::int64_t keys, Pieces& pieces)
      : words(num_mask_words(keys)),
        masks(shape.block_size > 0 ? pieces.take<std::uint64_t>(rows * words) : nullptr),
        tiles(shape.block_size > 0 ? pieces.take<TileMasks>(rows / kTileRows) : nullptr) {}
  [[gnu::always_inline]] bool are_there() const { return masks != nullptr; }
  // Bits of `keys` keys, those of a register tile, from the j-th of the block on.
  [[gnu::always_inline]] std::uint64_t bits(std::int64_t row, std::int64_t j,
                                            std::int64_t keys) const {
    const std::uint64_t all = ~std::uint64_t{0} >> (64 - keys);
    if ((tiles[row / kTileRows].full >> j / keys & 1) != 0) return all;
    return masks[row * words + j / 64] >> j % 64 & all;
  }
};

// Which probabilities dropout keeps, of rows against a block of keys, where a call has it; else
// null. Bit k of word w: that of key 64 w + k.
struct KeptBuffers {
  std::int64_t words = 0;
  std::uint64_t* bits = nullptr;  // [rows, words]

  KeptBuffers(const AttentionShape& shape, std::int64_t rows, std::int64_t keys, Pieces& pieces)
      : words(num_mask_words(keys)),
        bits(shape.drops() ? pieces.take<std::uint64_t>(rows * words) : nullptr) {}
  [[gnu::always_inline]] bool are_there() const { return bits != nullptr; }
  // Those of the keys from the j-th of the block on, the first of a register tile.
  [[gnu::always_inline]] std::uint64_t of(std::int64_t row, std::int64_t j) const {
    return bits[row * words + j / 64] >> j % 64;
  }
};

// The register tiles of rows that see one of some register tiles of keys, as runs of a depth that
// has `unit` steps a tile.
struct TileRuns {
  DepthRun runs[kMostRuns];
  int count = 0;
  std::uint32_t keys = 0;  // that the runs are of

  [[gnu::always_inline]] void find(const MaskBuffers& masks, std::int64_t num_tiles,
                                   std::int64_t unit, std::uint32_t of_keys) {
    if (of_keys == keys) return;
    keys = of_keys;
    std::uint32_t tiles = 0;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile)
      tiles |= static_cast<std::uint32_t>((masks.tiles[tile].any & keys) != 0) << tile;
    count = to_runs(tiles, unit, 0, num_tiles * unit, runs);
  }
  // What lies within `limits`.
  [[gnu::always_inline]] int within(DepthRun limits, DepthRun* cut) const {
    int num = 0;
    for (int i = 0; i < count; ++i) {
      const DepthRun run{std::max(runs[i].begin, limits.begin), std::min(runs[i].end, limits.end)};
      if (run.begin < run.end) cut[num++] = run;
    }
    return num;
  }
};

// The rows of a step of the backward that see a key of its block, as runs of register tiles; all
// of them without lists.
struct SeenRows {
  DepthRun runs[kMostRuns];
  int num_runs = 0;
};

struct AttentionBuffers {
  static constexpr AttentionBlocking kBlocking = kFloatBlocking;

  float *queries, *keys, *values, *scores, *sums, *minus_largest, *tile_totals;
  double* totals;
  std::int32_t *begins, *ends;
  TileRange* tiles;
  MaskBuffers masks;
  KeptBuffers kept;
  AttentionBuffers(const AttentionShape& shape, Pieces& pieces);
};

struct AttentionGradientBuffers {
  static constexpr AttentionBlocking kBlocking = kFloatBlocking;

  float *keys, *keys_across, *values_across;         // of the block of keys
  float *queries, *douts, *minus_lse, *minus_delta;  // of the block of rows
  float *weights, *gradients;                        // p and ds, [rows, kGradientStride]
  float *dq, *dk, *dv;
  std::int32_t *begins, *ends;
  TileRange* tiles;
  MaskBuffers masks;
  KeptBuffers kept;
  AttentionGradientBuffers(const AttentionShape& shape, Pieces& pieces);
};

using Word = std::uint32_t;  // two neighbours along the depth of a product, the first one low

// Larger blocks than in fp32: products are twice as fast, so packing costs twice as much next to
// them.
inline constexpr AttentionBlocking kPairBlocking{384, 256, 192, 192};
static_assert(kPairBlocking.is_whole());

// Columns of a panel of words, and keys of a register tile of scores.
inline constexpr std::int64_t kPairPanel = 16, kPairScores = 64;
static_assert(kPairBlocking.keys % kPairScores == 0 &&
              kPairBlocking.gradient_keys % kPairScores == 0);

// Words between rows of probabilities that are pairs of keys, and between those that are pairs of
// rows; no powers of two.
inline constexpr std::int64_t kPairStride = kPairBlocking.keys / 2 + 16,
                              kPairGradientStride = kPairBlocking.gradient_keys / 2 + 16,
                              kPairAcrossStride = kPairBlocking.gradient_keys + 16;

struct AttentionPairBuffers {
  static constexpr AttentionBlocking kBlocking = kPairBlocking;

  Word *queries, *keys, *values, *weights;
  float *scores, *sums, *minus_largest, *tile_totals;
  double* totals;
  std::int32_t *begins, *ends;
  TileRange* tiles;
  MaskBuffers masks;
  KeptBuffers kept;
  AttentionPairBuffers(const AttentionShape& shape, Pieces& pieces);
};

// For operands that are on the left of one product and on the right of another. Rows: pairs along
// the width. Panels: pairs of rows.
struct AttentionGradientPairBuffers {
  static constexpr AttentionBlocking kBlocking = kPairBlocking;

  Word *key_panels, *keys_across, *values_across;             // of the block of keys
  Word *query_rows, *query_panels, *dout_rows, *dout_panels;  // of the block of rows
  Word *weights_across, *gradients_across, *gradient_rows;    // p and ds
  float *minus_lse, *minus_delta, *dk, *dv;
  float* dq;  // of a register tile of rows
  std::int32_t *begins, *ends;
  TileRange* tiles;
  MaskBuffers masks;
  KeptBuffers kept;
  AttentionGradientPairBuffers(const AttentionShape& shape, Pieces& pieces);
};

}  // namespace anabatic::kernels::cpu
