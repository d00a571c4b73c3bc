// SPDX-License-Identifier: Apache-2.0
// A block of rows of attention's forward against tiles of keys, by products of bf16 pairs.
//
// Scores become probabilities in the registers that summed them. A row is rounded to bf16 for the
// product with the values; its total sums what was not rounded.
#pragma once
#include <limits>

#include "base/rounding.h"
#include "kernels/cpu/attention/attention_dropout.h"
#include "kernels/cpu/attention/attention_pairs.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The largest sum of a few exponentials that a row adds without a new maximum.
constexpr float kLargest = 0x1p40f;

ANABATIC_INLINE bool is_small(Floats x) {
  return _mm512_cmp_ps_mask(x, broadcast(kLargest), _CMP_NLE_UQ) == 0;
}

struct ForwardBlock {
  using Buffers = AttentionPairBuffers;
  static constexpr std::int64_t kTileKeys = Buffers::kBlocking.keys;
  static constexpr std::int64_t kTilePart = kPairScores;  // keys of a register tile

  const AttentionShape& shape;
  const Buffers& buffers;
  std::int64_t tiles_per_head, num_tiles;  // of rows
  KeptRows kept_rows;
  std::int64_t num_rows() const { return num_tiles * kRows; }
  std::int64_t key_words() const { return shape.padded_key_width() / 2; }
  std::int64_t value_width() const { return round_up(shape.value_width, kPairPanel); }

  const TileRange& range(std::int64_t tile) const { return buffers.tiles[tile % tiles_per_head]; }
  // The probabilities of a row tile, from the first key of the tile of keys on.
  Word* weights(std::int64_t tile) const {
    return buffers.weights + tile % (kStripRows / kRows) * kRows * kPairStride;
  }
  // Lanes of the sum of a row's exponentials over the tile of keys.
  float* tile_total(std::int64_t row) const {
    return buffers.tile_totals + row % kStripRows * kLanes;
  }
  // For a row tile, once all of its scores of a tile of keys are computed.
  void add_tile_totals(std::int64_t tile) const {
    for (std::int64_t row = tile * kRows; row < (tile + 1) * kRows; ++row)
      buffers.totals[row] += static_cast<double>(sum_lanes(load(tile_total(row))));
  }
  Floats to_base_2() const { return broadcast(shape.scale * kLog2E); }

  // Before the first tile of keys.
  void clear() const {
    std::fill(buffers.sums, buffers.sums + num_rows() * value_width(), 0.0f);
    std::fill(buffers.totals, buffers.totals + num_rows(), 0.0);
    std::fill(buffers.minus_largest, buffers.minus_largest + num_rows(), 0.0f);
  }
  // Rows of a head, as those from `at` on.
  void pack_queries(const HeadRows<const BFloat16>& from, const RowBlock& rows,
                    std::int64_t at) const {
    copy_rows(from, rows.first, rows.count, key_words(), buffers.queries + at * key_words());
  }
  // Packs keys [j, j + count) of the tile of keys from `first` on.
  void pack_keys(const HeadRows<const BFloat16>& k, const HeadRows<const BFloat16>& v,
                 std::int64_t first, std::int64_t j, std::int64_t count) const {
    pack_across(k, first + j, count, key_words(), buffers.keys + j * key_words());
    pack_row_pairs(v, first + j, count, kTileKeys, buffers.values, j);
  }
  void write_row(std::int64_t row, float factor, const HeadRows<BFloat16>& to,
                 std::int64_t t) const {
    write_sums(buffers.sums + row * value_width(), factor, to, t);
  }

  // sums := queries of a row tile · keys from `j` of the tile of keys on.
  template <int kCount>
  ANABATIC_INLINE void score(std::int64_t tile, std::int64_t j, PairSums<kCount>& sums) const {
    multiply_add_rows<kCount>(sums, buffers.queries + tile * kRows * key_words(), key_words(),
                              buffers.keys + j * key_words(), kPairPanel * key_words(),
                              ceil_div(shape.key_width, 2));
  }

  // The scores of a row tile and 16 · kCount keys from `j` on: exponentials to weights, and added
  // to the totals. `key` is the first of them, counted as ranges are. False, and nothing added,
  // where a row needs a new maximum. Unless kMasked, every row sees all keys; unless kFirst, every
  // row that sees one has a maximum.
  template <int kCount, bool kMasked, bool kFirst>
  __attribute__((noinline)) bool fold(std::int64_t tile, std::int64_t j, std::int64_t key) const {
    PairSums<kCount> p = {};
    score<kCount>(tile, j, p);
    const Floats factor = to_base_2();
    float* minus_largest = buffers.minus_largest + tile * kRows;
    const std::int64_t of_head = tile % tiles_per_head * kRows;
    Floats added[kRows];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const std::uint64_t sees = kMasked ? visible(of_head + i, j, key) : ~std::uint64_t{0};
      if (kFirst && is_first(of_head + i, key) && sees != 0)
        minus_largest[i] = -largest<kCount>(p[i], factor, sees);
      const Floats shift = broadcast(minus_largest[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) {
        const Floats x = madd(p[i][v], factor, shift);
        p[i][v] = kMasked ? exp2_roughly(x, lanes_of(sees, v)) : exp2_roughly(x);
      }
      added[i] = store_weights<kCount>(p[i], weights(tile) + i * kPairStride + j / 2);
    }
    Floats top = added[0];
#pragma GCC unroll 5
    for (int i = 1; i < kRows; ++i) top = _mm512_max_ps(top, added[i]);
    if (!is_small(top)) return false;
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      float* total = tile_total(tile * kRows + i);
      store(total, load(total) + added[i]);
    }
    return true;
  }

  // Their sum, for the rounded ones do not add up to as much.
  template <int kCount>
  ANABATIC_INLINE static Floats store_weights(const Floats (&p)[kCount], Word* to) {
    Floats sum = p[0];
#pragma GCC unroll 3
    for (int v = 1; v < kCount; ++v) sum += p[v];
#pragma GCC unroll 2
    for (int v = 0; v < kCount; v += 2)
      _mm512_storeu_si512(to + v * kLanes / 2,
                          to_pairs(p[v], v + 1 < kCount ? p[v + 1] : Floats{}));
    return sum;
  }

  // Bits of the keys from `key` on, the j-th of the tile of keys, that a row sees; the same for
  // every head.
  std::uint64_t visible(std::int64_t row, std::int64_t j, std::int64_t key) const {
    if (buffers.masks.are_there()) return buffers.masks.bits(row, j, kPairScores);
    return visible_keys(buffers.begins[row] - key, buffers.ends[row] - key);
  }
  // Whether the keys from `key` on hold its first one.
  bool is_first(std::int64_t row, std::int64_t key) const {
    return buffers.begins[row] >= key && buffers.begins[row] < key + kPairScores;
  }

  // The largest of the scores that a row sees, in base 2.
  template <int kCount>
  ANABATIC_INLINE static float largest(const Floats (&scores)[kCount], Floats factor,
                                       std::uint64_t sees) {
    Floats top = broadcast(-kInfinity);
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v)
      top = _mm512_mask_max_ps(top, lanes_of(sees, v), top, scores[v] * factor);
    return _mm512_reduce_max_ps(top);
  }

  // As fold, row by row. A row whose sum grew too large gets a new maximum. Before a sum is scaled,
  // the weights of the tile so far are added to its sums: those of `waiting`.
  __attribute__((noinline)) void fold_slowly(std::int64_t tile, std::int64_t j, std::int64_t key,
                                             std::uint32_t& waiting) const {
    {
      PairSums<kPanels> sums = {};
      score<kPanels>(tile, j, sums);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kPanels; ++v)
          store(buffers.scores + i * kPairScores + v * kLanes, sums[i][v]);
    }
    const Floats factor = to_base_2();
    for (std::int64_t i = 0; i < kRows; ++i) {
      const std::int64_t row = tile * kRows + i;
      const std::uint64_t sees = visible(tile % tiles_per_head * kRows + i, j, key);
      Floats scores[kPanels], p[kPanels];
      for (int v = 0; v < kPanels; ++v)
        scores[v] = load(buffers.scores + i * kPairScores + v * kLanes);
      const auto exponentials = [&] {
        for (int v = 0; v < kPanels; ++v)
          p[v] = exp2_roughly(madd(scores[v], factor, broadcast(buffers.minus_largest[row])),
                              lanes_of(sees, v));
        return store_weights<kPanels>(p, weights(tile) + i * kPairStride + j / 2);
      };
      Floats added = exponentials();
      if (!is_small(added)) {
        DepthRun runs[kMostRuns];
        const int num_runs = value_runs(tile, key - j, j, waiting, runs);
        for (std::int64_t column = 0; column < shape.value_width; column += kPairScores)
          add_values(tile, column, runs, num_runs);
        waiting = 0;
        const float minus_top = -largest<kPanels>(scores, factor, sees);
        scale_row(row, minus_top - buffers.minus_largest[row]);
        buffers.minus_largest[row] = minus_top;
        added = exponentials();
      }
      store(tile_total(row), load(tile_total(row)) + added);
    }
  }

  // By 2^exponent, what a row has summed so far.
  void scale_row(std::int64_t row, float exponent) const {
    const Floats factor = exp2_roughly(broadcast(exponent));
    buffers.totals[row] *= double{factor[0]};
    store(tile_total(row), factor * load(tile_total(row)));
    float* sums = buffers.sums + row * value_width();
    for (std::int64_t j = 0; j < value_width(); j += kLanes)
      store(sums + j, factor * load(sums + j));
  }

  // The words of weights of these register tiles of scores, below key `end` of the tile of keys,
  // whose first is `key`.
  int value_runs(std::int64_t tile, std::int64_t key, std::int64_t end, std::uint32_t waiting,
                 DepthRun* runs) const {
    const std::int64_t begin = std::max(range(tile).begin - key, std::int64_t{0}) / 2,
                       last = std::min(range(tile).end - key, end);
    return to_runs(waiting, kPairScores / 2, begin, ceil_div(std::max(last, std::int64_t{0}), 2),
                   runs);
  }

  // sums += weights · values, of a row tile. From a column of values on: four panels, or what is
  // left.
  void add_values(std::int64_t tile, std::int64_t column, const DepthRun* runs,
                  int num_runs) const {
    if (num_runs == 0) return;
    const Word* values = buffers.values + column * kTileKeys / 2;
    float* sums = buffers.sums + tile * kRows * value_width() + column;
    with_panels(shape.value_width - column, [&]<int kCount>() {
      multiply<kCount, kPairStride, 1, true>(weights(tile), values, kTileKeys / 2 * kPairPanel,
                                             runs, num_runs, sums, value_width());
    });
  }

  // Whether a row of the tile sees a key of the register tile of scores at `j`; whether all rows
  // see all keys.
  bool sees(std::int64_t tile, std::int64_t j, std::int64_t key) const {
    if (buffers.masks.are_there())
      return (buffers.masks.tiles[tile % tiles_per_head].any >> j / kPairScores & 1) != 0;
    return range(tile).begin < key + kPairScores && range(tile).end > key;
  }
  bool is_full(std::int64_t tile, std::int64_t j, std::int64_t key) const {
    if (buffers.masks.are_there())
      return (buffers.masks.tiles[tile % tiles_per_head].full >> j / kPairScores & 1) != 0;
    return range(tile).full_begin <= key && key + kPairScores <= range(tile).full_end;
  }

  // Whether lists leave nothing of the tile of keys to the row tiles [first, last).
  bool is_unseen(std::int64_t first, std::int64_t last) const {
    if (!buffers.masks.are_there()) return false;
    std::uint32_t any = 0;
    for (std::int64_t tile = first; tile < last; ++tile)
      any |= buffers.masks.tiles[tile % tiles_per_head].any;
    return any == 0;
  }

  // Row tile `tile` against the register tile of scores at `j`, from key `key` on. `waiting` has
  // the register tiles whose weights no sum holds yet.
  void fold_keys(std::int64_t tile, std::int64_t j, std::int64_t key,
                 std::uint32_t& waiting) const {
    if (!sees(tile, j, key)) return;
    const bool is_first = range(tile).full_begin >= key;
    const bool is_done =
        is_full(tile, j, key)
            ? (is_first ? fold<kPanels, false, true>(tile, j, key)
                        : fold<kPanels, false, false>(tile, j, key))
            : with_panels(std::min<std::int64_t>(range(tile).end - key, kPairScores),
                          [&]<int kCount>() {
                            return is_first ? fold<kCount, true, true>(tile, j, key)
                                            : fold<kCount, true, false>(tile, j, key);
                          });
    if (!is_done) fold_slowly(tile, j, key, waiting);
    if (buffers.kept.are_there()) drop(tile, j);
    waiting |= std::uint32_t{1} << j / kPairScores;
  }

  // Takes the probabilities that dropout drops from a register tile's weights; totals keep them.
  __attribute__((noinline)) void drop(std::int64_t tile, std::int64_t j) const {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const std::uint64_t kept = buffers.kept.of((tile * kRows + i) % kStripRows, j);
      Word* at = weights(tile) + i * kPairStride + j / 2;
      for (int v = 0; v < 2; ++v, at += kLanes)
        _mm512_storeu_si512(at, _mm512_maskz_mov_epi16(static_cast<__mmask32>(kept >> (32 * v)),
                                                       _mm512_loadu_si512(at)));
    }
  }

  // The strip of row tiles [first, last) against the packed tile of keys [key, key + count).
  void fold_strip(std::int64_t first, std::int64_t last, std::int64_t key,
                  std::int64_t count) const {
    constexpr std::int64_t kTiles = kStripRows / kRows;
    if (is_unseen(first, last)) return;
    std::fill(buffers.tile_totals, buffers.tile_totals + kStripRows * kLanes, 0.0f);
    if (buffers.kept.are_there()) fill_kept(*this, first, last, key, count);
    std::uint32_t waiting[kTiles] = {};
    for (std::int64_t j = 0; j < count; j += kPairScores)
      for (std::int64_t tile = first; tile < last; ++tile)
        fold_keys(tile, j, key + j, waiting[tile - first]);
    for (std::int64_t tile = first; tile < last; ++tile)
      if (waiting[tile - first] != 0 || !buffers.masks.are_there()) add_tile_totals(tile);
    DepthRun runs[kTiles][kMostRuns];
    int num_runs[kTiles];
    for (std::int64_t tile = first; tile < last; ++tile)
      num_runs[tile - first] =
          value_runs(tile, key, count, waiting[tile - first], runs[tile - first]);
    for (std::int64_t j = 0; j < shape.value_width; j += kPairScores)
      for (std::int64_t tile = first; tile < last; ++tile)
        add_values(tile, j, runs[tile - first], num_runs[tile - first]);
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
