// SPDX-License-Identifier: Apache-2.0
// A block of keys against a block of rows of attention's backward, by products of bf16 pairs. p and
// ds are rounded to bf16 for them, ds from a p that is not; all sums are fp32.
#pragma once
#include "base/rounding.h"
#include "kernels/cpu/attention/attention_dropout.h"
#include "kernels/cpu/attention/attention_pairs.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// Words of elements of two rows, from what to_pairs gives of one row and the next.
ANABATIC_INLINE __m512i across(__m512i rows) {
  Shorts index;
  for (int lane = 0; lane < kLanes; ++lane) {
    index[2 * lane] = static_cast<std::uint16_t>(lane);
    index[2 * lane + 1] = static_cast<std::uint16_t>(kLanes + lane);
  }
  return (__m512i)__builtin_shuffle((Shorts)rows, index);
}

// One block of keys against one block of rows, all packed.
struct GradientStep {
  using Buffers = AttentionGradientPairBuffers;
  static constexpr std::int64_t kGradientRows = Buffers::kBlocking.gradient_rows,
                                kGradientKeys = Buffers::kBlocking.gradient_keys;
  static constexpr std::int64_t kTilePart = kPairScores;  // keys of a register tile

  const Buffers& b;
  const AttentionShape& shape;
  std::int64_t num_rows, num_keys;          // num_rows: whole register tiles
  std::int64_t key_words, value_words;      // of a packed row
  std::int64_t key_columns, value_columns;  // of a row of dq and dk, and of dv
  SeenRows seen{};

  GradientStep(const AttentionShape& of, const Buffers& buffers, std::int64_t rows,
               std::int64_t keys)
      : b(buffers),
        shape(of),
        num_rows(round_up(rows, kRows)),
        num_keys(keys),
        key_words(of.padded_key_width() / 2),
        value_words(of.padded_value_width() / 2),
        key_columns(round_up(of.key_width, kPairPanel)),
        value_columns(round_up(of.value_width, kPairPanel)) {}

  // Keys from `first` on; no row has added to their dk and dv.
  void start(const HeadRows<const BFloat16>& k, const HeadRows<const BFloat16>& v,
             std::int64_t first) const {
    pack_row_pairs(k, first, num_keys, kGradientKeys, b.key_panels);
    pack_across(k, first, num_keys, key_words, b.keys_across);
    pack_across(v, first, num_keys, value_words, b.values_across);
    std::fill(b.dk, b.dk + round_up(num_keys, kRows) * key_columns, 0.0f);
    std::fill(b.dv, b.dv + round_up(num_keys, kRows) * value_columns, 0.0f);
  }
  // dk and dv of the keys from `first` on, after all rows.
  void finish(const HeadRows<BFloat16>& dk, const HeadRows<BFloat16>& dv,
              std::int64_t first) const {
    for (std::int64_t s = 0; s < num_keys; ++s) {
      write_sums(b.dk + s * key_columns, shape.scale * shape.kept_scale, dk, first + s);
      write_sums(b.dv + s * value_columns, shape.kept_scale, dv, first + s);
    }
  }
  // Rows that see a key.
  void pack_rows(const HeadRows<const BFloat16>& q, const HeadRows<const BFloat16>& dout,
                 const RowBlock& rows) const {
    for (int r = 0; r < seen.num_runs; ++r) {
      const std::int64_t at = seen.runs[r].begin, first = rows.first + at,
                         count = std::min(seen.runs[r].end, rows.count) - at;
      pack_both(q, first, count, key_words, b.query_rows, kGradientRows, b.query_panels, at);
      pack_both(dout, first, count, value_words, b.dout_rows, kGradientRows, b.dout_panels, at);
    }
  }
  // Sums of dq become dq of row t.
  void write_dq(const float* sums, std::int64_t, std::int64_t row, const HeadRows<BFloat16>& dq,
                std::int64_t t) const {
    write_sums(sums + row * key_columns, shape.scale * shape.kept_scale, dq, t);
  }

  // Computes p and ds of a register tile of rows and 16 · kCount keys. They are 0 where a row does
  // not see a key, and in the rest of the register tile of scores. Unless kMasked, every row sees
  // all keys. kDrops: products get p that dropout keeps, and ds is of dp that it keeps.
  template <int kCount, bool kMasked, bool kDrops>
  __attribute__((noinline)) void weigh(std::int64_t row, std::int64_t key) const {
    Floats p[kRows][kCount];
    PairSums<kCount> sums = {};
    multiply_add_rows<kCount>(sums, b.query_rows + row * key_words, key_words,
                              b.keys_across + key * key_words, kPairPanel * key_words,
                              ceil_div(shape.key_width, 2));
    const Floats factor = broadcast(shape.scale * kLog2E);
    const auto weight = [&](int i, int v, std::uint64_t sees) {
      const Floats x = madd(sums[i][v], factor, broadcast(b.minus_lse[row + i]));
      p[i][v] = kMasked ? exp2_roughly(x, lanes_of(sees, v)) : exp2_roughly(x);
      return p[i][v];
    };
    const auto kept = [&](int i, int v) { return lanes_of(b.kept.of(row + i, key), v); };
    const auto kept_weight = [&](int i, int v, std::uint64_t sees) {
      const Floats whole = weight(i, v, sees);
      return kDrops ? _mm512_maskz_mov_ps(kept(i, v), whole) : whole;
    };
    Word* weights = b.weights_across + row / 2 * kPairAcrossStride + key;
#pragma GCC unroll 3
    for (int i = 0; i < kRows; i += 2) {
      const std::uint64_t first = kMasked ? visible(row + i, key) : 0,
                          second = kMasked ? visible(row + i + 1, key) : 0;
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v)
        _mm512_storeu_si512(
            weights + i / 2 * kPairAcrossStride + v * kLanes,
            across(to_pairs(kept_weight(i, v, first), kept_weight(i + 1, v, second))));
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) sums[i][v] = broadcast(b.minus_delta[row + i]);
    multiply_add_rows<kCount>(sums, b.dout_rows + row * value_words, value_words,
                              b.values_across + key * value_words, kPairPanel * value_words,
                              ceil_div(shape.value_width, 2));
    const auto gradient = [&](int i, int v) {
      const Floats dp =
          kDrops ? _mm512_mask_mov_ps(broadcast(b.minus_delta[row + i]), kept(i, v), sums[i][v])
                 : sums[i][v];
      return dp * p[i][v];
    };
#pragma GCC unroll 3
    for (int i = 0; i < kRows; i += 2)
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v)
        store_gradients(row + i, key + v * kLanes, to_pairs(gradient(i, v), gradient(i + 1, v)));
    if constexpr (kMasked) clear(row, key + kCount * kLanes, kPanels - kCount);
  }

  std::uint64_t visible(std::int64_t row, std::int64_t key) const {
    if (b.masks.are_there()) return b.masks.bits(row, key, kPairScores);
    return visible_keys(b.begins[row] - key, b.ends[row] - key);
  }

  // ds of two rows and a vector of keys.
  ANABATIC_INLINE void store_gradients(std::int64_t row, std::int64_t key, __m512i rows) const {
    using Quads = std::int64_t __attribute__((vector_size(64)));
    using HalfQuads = std::int64_t __attribute__((vector_size(32)));
    const Quads both = (Quads)rows;
    const HalfQuads first = __builtin_shufflevector(both, both, 0, 1, 2, 3),
                    second = __builtin_shufflevector(both, both, 4, 5, 6, 7);
    Word* to = b.gradient_rows + row * kPairGradientStride + key / 2;
    std::memcpy(to, &first, sizeof first);
    std::memcpy(to + kPairGradientStride, &second, sizeof second);
    _mm512_storeu_si512(b.gradients_across + row / 2 * kPairAcrossStride + key, across(rows));
  }

  // `vectors` of keys.
  void clear(std::int64_t row, std::int64_t key, int vectors) const {
    for (std::int64_t i = 0; i < kRows; i += 2)
      for (std::int64_t at = key; at < key + vectors * kLanes; at += kLanes) {
        _mm512_storeu_si512(b.weights_across + (row + i) / 2 * kPairAcrossStride + at, __m512i{});
        store_gradients(row + i, at, __m512i{});
      }
  }

  // What products read of a register tile that no row sees: keys at its ends share a register tile
  // of dk and dv with keys of its neighbours.
  void clear_edges(std::int64_t row, std::int64_t key) const {
    static_assert(kRows <= kLanes);
    for (std::int64_t i = row; i < row + kRows; i += 2)
      for (const std::int64_t at : {key, key + kPairScores - kLanes}) {
        _mm512_storeu_si512(b.weights_across + i / 2 * kPairAcrossStride + at, __m512i{});
        _mm512_storeu_si512(b.gradients_across + i / 2 * kPairAcrossStride + at, __m512i{});
      }
  }

  // For a register tile of rows and one of keys: whether a row sees a key, and whether all rows see
  // all keys.
  bool sees(std::int64_t row, std::int64_t key) const {
    if (b.masks.are_there()) return (b.masks.tiles[row / kRows].any >> key / kPairScores & 1) != 0;
    const TileRange& tile = b.tiles[row / kRows];
    return tile.end > key && tile.begin < key + kPairScores;
  }
  bool is_full(std::int64_t row, std::int64_t key) const {
    if (b.masks.are_there()) return (b.masks.tiles[row / kRows].full >> key / kPairScores & 1) != 0;
    const TileRange& tile = b.tiles[row / kRows];
    return tile.full_begin <= key && key + kPairScores <= tile.full_end;
  }
  // Whether products leave out the rows of a register tile.
  bool is_unseen(std::int64_t row) const {
    return b.masks.are_there() && b.masks.tiles[row / kRows].any == 0;
  }

  void weigh_all() const { b.kept.are_there() ? weigh_all<true>() : weigh_all<false>(); }
  template <bool kDrops>
  void weigh_all() const {
    for (std::int64_t key = 0; key < num_keys; key += kPairScores)
      for (std::int64_t row = 0; row < num_rows; row += kRows) {
        if (is_unseen(row)) continue;
        if (!sees(row, key))
          b.masks.are_there() ? clear_edges(row, key) : clear(row, key, kPanels);
        else if (is_full(row, key))
          weigh<kPanels, false, kDrops>(row, key);
        else
          with_panels(std::min<std::int64_t>(b.tiles[row / kRows].end - key, kPairScores),
                      [&]<int kCount>() { weigh<kCount, true, kDrops>(row, key); });
      }
  }

  // Rows that may see one of kRows keys from `key` on, as a run of words.
  DepthRun row_run(std::int64_t key) const {
    std::int64_t begin = 0, end = num_rows;
    const auto sees_one = [&](std::int64_t row) {
      const TileRange& tile = b.tiles[row / kRows];
      return tile.begin < key + kRows && tile.end > key;
    };
    while (begin < end && !sees_one(begin)) begin += kRows;
    while (begin < end && !sees_one(end - kRows)) end -= kRows;
    return {static_cast<std::int32_t>(begin / 2), static_cast<std::int32_t>(end / 2)};
  }

  // Sums over rows: to[key] += Σ of[row, key] · with[row].
  void add_over_rows(const Word* of, const Word* with, std::int64_t width, float* to) const {
    const std::int64_t columns = round_up(width, kPairPanel);
    for (std::int64_t j = 0; j < width; j += kPairScores) {
      TileRuns listed;
      for (std::int64_t key = 0; key < num_keys; key += kRows) {
        DepthRun runs[kMostRuns];
        runs[0] = row_run(key);
        int num_runs = runs[0].begin < runs[0].end ? 1 : 0;
        if (b.masks.are_there()) {
          listed.find(b.masks, num_rows / kRows, kRows / 2,
                      std::uint32_t{1} << key / kPairScores |
                          std::uint32_t{1} << (key + kRows - 1) / kPairScores);
          num_runs = listed.within(runs[0], runs);
        }
        if (num_runs == 0) continue;
        with_panels(width - j, [&]<int kCount>() {
          multiply<kCount, 1, kPairAcrossStride, true>(of + key, with + j * kGradientRows / 2,
                                                       kGradientRows / 2 * kPairPanel, runs,
                                                       num_runs, to + key * columns + j, columns);
        });
      }
    }
  }

  // Adds dq = ds · keys of `count` rows to `sums`; the first step only writes there. Products add
  // where the sums lie. That of a register tile with fewer rows goes by way of b.dq, for what
  // follows in `sums` is of another block.
  void add_dq(std::int64_t count, bool is_first, float* sums) const {
    DepthRun runs[kMostRuns];
    for (std::int64_t j = 0; j < shape.key_width; j += kPairScores) {
      const std::int64_t width = std::min(key_columns - j, kPairScores);
      for (std::int64_t row = 0; row < num_rows; row += kRows) {
        const int num_runs = key_runs(row, runs);
        const std::int64_t rows = std::min<std::int64_t>(kRows, count - row);
        float* to = sums + row * key_columns + j;
        if (num_runs == 0) {
          for (std::int64_t i = 0; is_first && i < rows; ++i)
            std::fill_n(to + i * key_columns, width, 0.0f);
          continue;
        }
        for (std::int64_t i = kRows; i < std::min<std::int64_t>(2 * kRows, count - row); ++i)
          for (std::int64_t c = 0; c < width; c += kLanes)
            __builtin_prefetch(to + i * key_columns + c, 1);
        if (rows == kRows && !is_first) {
          multiply_keys<true>(row, j, runs, num_runs, to);
        } else if (rows == kRows) {
          multiply_keys<false>(row, j, runs, num_runs, to);
        } else {
          multiply_keys<false>(row, j, runs, num_runs, b.dq);
          for (std::int64_t i = 0; i < rows * key_columns; i += key_columns)
            for (std::int64_t c = i; c < i + width; c += kLanes)
              store(to + c, is_first ? load(b.dq + c) : load(to + c) + load(b.dq + c));
        }
      }
    }
  }
  // to := ds · keys, or +=, of a register tile of rows, from a column of keys on.
  template <bool kAdd>
  void multiply_keys(std::int64_t row, std::int64_t column, const DepthRun* runs, int num_runs,
                     float* to) const {
    with_panels(shape.key_width - column, [&]<int kCount>() {
      multiply<kCount, kPairGradientStride, 1, kAdd>(
          b.gradient_rows + row * kPairGradientStride, b.key_panels + column * kGradientKeys / 2,
          kGradientKeys / 2 * kPairPanel, runs, num_runs, to, key_columns);
    });
  }
  // The keys that a register tile of rows sees, as runs of words.
  int key_runs(std::int64_t row, DepthRun* runs) const {
    const TileRange& tile = b.tiles[row / kRows];
    const std::int64_t begin = tile.begin / 2, end = ceil_div(tile.end, 2);
    if (b.masks.are_there())
      return to_runs(b.masks.tiles[row / kRows].any, kPairScores / 2, begin, end, runs);
    runs[0] = {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
    return begin < end ? 1 : 0;
  }

  void run() const {
    weigh_all();
    add_over_rows(b.weights_across, b.dout_panels, shape.value_width, b.dv);
    add_over_rows(b.gradients_across, b.query_panels, shape.key_width, b.dk);
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
