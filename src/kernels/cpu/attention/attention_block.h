// SPDX-License-Identifier: Apache-2.0
// A block of rows of attention's forward against tiles of keys, in fp32.
#pragma once
#include <limits>

#include "kernels/cpu/attention/attention_dropout.h"
#include "kernels/cpu/attention/attention_tiles.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The largest exponential, and sum of a few, that a row adds without a new maximum.
constexpr float kLargest = 0x1p40f;

// All lanes hold at most kLargest; NaN does not.
ANABATIC_INLINE bool is_small(Floats x) {
  const Ints small = x <= kLargest;
  int all = -1;
#if ANABATIC_ISA_LANES == 8
  all = _mm256_movemask_ps(reinterpret_cast<__m256>(small)) == 0xFF;
#else
  for (int i = 0; i < kLanes; ++i) all &= small[i];
#endif
  return all != 0;
}

struct ForwardBlock {
  using Buffers = AttentionBuffers;
  static constexpr std::int64_t kTileKeys = Buffers::kBlocking.keys;
  static constexpr std::int64_t kTilePart = kPanel;  // keys of a register tile

  const AttentionShape& shape;
  const Buffers& buffers;
  std::int64_t tiles_per_head, num_tiles;  // of rows
  KeptRows kept_rows;
  std::int64_t num_rows() const { return num_tiles * kRows; }
  std::int64_t key_width() const { return padded(shape.key_width); }
  std::int64_t value_width() const { return padded(shape.value_width); }

  const TileRange& range(std::int64_t tile) const { return buffers.tiles[tile % tiles_per_head]; }
  float* scores(std::int64_t tile) const {
    return buffers.scores + tile % (kStripRows / kRows) * kRows * kScoreStride;
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

  // Before the first tile of keys.
  void clear() const {
    std::fill(buffers.sums, buffers.sums + num_rows() * value_width(), 0.0f);
    std::fill(buffers.totals, buffers.totals + num_rows(), 0.0);
    std::fill(buffers.minus_largest, buffers.minus_largest + num_rows(), 0.0f);
  }
  // Rows of a head, as those from `at` on.
  template <class T>
  void pack_queries(const HeadRows<const T>& from, const RowBlock& rows, std::int64_t at) const {
    pack(from, rows.first, rows.count, shape.scale * kLog2E, num_rows(),
         buffers.queries + at * kPanel);
  }
  // Packs keys [j, j + count) of the tile of keys from `first` on.
  template <class T>
  void pack_keys(const HeadRows<const T>& k, const HeadRows<const T>& v, std::int64_t first,
                 std::int64_t j, std::int64_t count) const {
    pack_across(k, first + j, count, buffers.keys + j * key_width());
    pack(v, first + j, count, 1.0f, kTileKeys, buffers.values, j);
  }
  template <class T>
  void write_row(std::int64_t row, float factor, const HeadRows<T>& to, std::int64_t t) const {
    unpack_row(buffers.sums, num_rows(), row, factor, to, t);
  }

  // scores := queries of a tile · keys of a panel - maximum.
  void score(std::int64_t tile, const float* keys, float* scores) const {
    Sums sums;
    fill(sums, buffers.minus_largest + tile * kRows);
    multiply_add_panels(sums, buffers.queries + tile * kRows * kPanel, num_rows(), keys,
                        key_width());
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      store(scores + i * kScoreStride, sums[i][0]);
      store(scores + i * kScoreStride + kLanes, sums[i][1]);
    }
  }

  // Turns the scores of a tile into exponentials and adds them to the totals. `before` scores of
  // the same strip are to the left of them.
  void fold_full(std::int64_t tile, std::int64_t before, float* scores) const {
#pragma GCC unroll 3
    for (std::int64_t i = 0; i < kRows; i += 2, scores += 2 * kScoreStride) {
      float* next = scores + kScoreStride;
      Floats p[] = {load(scores), load(scores + kLanes), load(next), load(next + kLanes)};
      exp2(p);
      const std::int64_t row = tile * kRows + i;
      add_full(row, p[0], p[1], before, scores);
      add_full(row + 1, p[2], p[3], before, next);
    }
  }

  ANABATIC_INLINE void add_full(std::int64_t row, Floats first, Floats second, std::int64_t before,
                                float* scores) const {
    const Floats added = first + second;
    if (!is_small(added)) return fold_row(row, {visible_keys(0, kPanel), false}, before, scores);
    store(scores, first);
    store(scores + kLanes, second);
    store(tile_total(row), load(tile_total(row)) + added);
  }

  // For the panel at `j` of the tile of keys, whose first key is `key`.
  void fold_masked(std::int64_t tile, std::int64_t j, std::int64_t key, std::int64_t before,
                   float* scores) const {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const std::int64_t of_head = tile % tiles_per_head * kRows + i;
      const std::int64_t begin = buffers.begins[of_head] - key, end = buffers.ends[of_head] - key;
      const std::uint32_t keys =
          buffers.masks.are_there()
              ? static_cast<std::uint32_t>(buffers.masks.bits(of_head, j, kPanel))
              : visible_keys(begin, end);
      fold_row(tile * kRows + i, {keys, begin >= 0}, before, scores + i * kScoreStride);
    }
  }

  // The keys of a panel that a row sees; whether it is the first panel that it sees.
  struct PanelRange {
    std::uint32_t keys;
    bool is_first;
  };

  __attribute__((noinline)) void fold_row(std::int64_t row, PanelRange sees, std::int64_t before,
                                          float* scores) const {
    if (sees.keys == 0) {
      store(scores, Floats{});
      store(scores + kLanes, Floats{});
      return;
    }
    const Ints lanes[kVectors] = {lanes_of(sees.keys, 0), lanes_of(sees.keys, 1)};
    const Floats x[kVectors] = {load(scores), load(scores + kLanes)};
    const auto exponentials = [&](float top) {
      Floats p[] = {x[0] - top, x[1] - top};
      exp2(p);
      const Floats first = lanes[0] ? p[0] : Floats{}, second = lanes[1] ? p[1] : Floats{};
      store(scores, first);
      store(scores + kLanes, second);
      return first + second;
    };
    const auto top = [&] {
      return max_lanes(
          max(lanes[0] ? x[0] : broadcast(-kInfinity), lanes[1] ? x[1] : broadcast(-kInfinity)));
    };
    float more = sees.is_first ? top() : 0.0f;
    Floats added = exponentials(more);
    if (!sees.is_first && !is_small(added)) {
      more = top();
      Floats factor[] = {broadcast(-more)};
      exp2(factor);
      scale_row(row, factor[0][0], before, scores);
      added = exponentials(more);
    }
    buffers.minus_largest[row] -= more;
    store(tile_total(row), load(tile_total(row)) + added);
  }

  // What a row has summed so far, and the scores of this strip that are not in its sums yet.
  void scale_row(std::int64_t row, float factor, std::int64_t before, float* scores) const {
    buffers.totals[row] *= double{factor};
    store(tile_total(row), factor * load(tile_total(row)));
    for (std::int64_t j = 0; j < value_width(); j += kLanes) {
      float* sum = buffers.sums + (j / kPanel * num_rows() + row) * kPanel + j % kPanel;
      store(sum, factor * load(sum));
    }
    for (std::int64_t j = -before; j < 0; j += kLanes) store(scores + j, factor * load(scores + j));
  }

  // Whether a row of the tile sees a key of the panel at `j`, from key `panel` on; whether all rows
  // see all keys, and had seen one before.
  bool sees_panel(std::int64_t tile, std::int64_t j, std::int64_t panel) const {
    if (buffers.masks.are_there())
      return (buffers.masks.tiles[tile % tiles_per_head].any >> j / kPanel & 1) != 0;
    return range(tile).begin < panel + kPanel && range(tile).end > panel;
  }
  // Whether lists leave nothing of the tile of keys to the row tiles [first, last).
  bool is_unseen(std::int64_t first, std::int64_t last) const {
    if (!buffers.masks.are_there()) return false;
    std::uint32_t any = 0;
    for (std::int64_t tile = first; tile < last; ++tile)
      any |= buffers.masks.tiles[tile % tiles_per_head].any;
    return any == 0;
  }
  // The first panel of a row is not full: its maximum is not known yet.
  bool is_full(std::int64_t tile, std::int64_t j, std::int64_t panel) const {
    if (range(tile).full_begin >= panel) return false;
    if (buffers.masks.are_there())
      return (buffers.masks.tiles[tile % tiles_per_head].full >> j / kPanel & 1) != 0;
    return panel + kPanel <= range(tile).full_end;
  }

  // Takes the probabilities that dropout drops from a register tile's scores; totals keep them.
  __attribute__((noinline)) void drop(std::int64_t tile, std::int64_t j) const {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const auto kept =
          static_cast<std::uint32_t>(buffers.kept.of((tile * kRows + i) % kStripRows, j));
      float* at = scores(tile) + i * kScoreStride + j;
      for (int v = 0; v < kVectors; ++v, at += kLanes)
        store(at, lanes_of(kept, v) ? load(at) : Floats{});
    }
  }

  // The strip of row tiles [first, last) against the packed tile of keys [key, key + count).
  void fold_strip(std::int64_t first, std::int64_t last, std::int64_t key,
                  std::int64_t count) const {
    constexpr std::int64_t kTiles = kStripRows / kRows;
    if (is_unseen(first, last)) return;
    std::fill(buffers.tile_totals, buffers.tile_totals + kStripRows * kLanes, 0.0f);
    if (buffers.kept.are_there()) fill_kept(*this, first, last, key, count);
    const auto first_panel = [&](const TileRange& sees) {
      return std::max(sees.begin / kPanel * kPanel - key, std::int64_t{0});
    };
    std::uint32_t folded[kTiles] = {};  // panels
    for (std::int64_t j = 0; j < count; j += kPanel) {
      const std::int64_t panel = key + j;
      for (std::int64_t tile = first; tile < last; ++tile)
        if (sees_panel(tile, j, panel))
          score(tile, buffers.keys + j * key_width(), scores(tile) + j);
      for (std::int64_t tile = first; tile < last; ++tile) {
        if (!sees_panel(tile, j, panel)) continue;
        if (is_full(tile, j, panel))
          fold_full(tile, j - first_panel(range(tile)), scores(tile) + j);
        else
          fold_masked(tile, j, panel, j - first_panel(range(tile)), scores(tile) + j);
        if (buffers.kept.are_there()) drop(tile, j);
        folded[tile - first] |= std::uint32_t{1} << j / kPanel;
      }
    }
    for (std::int64_t tile = first; tile < last; ++tile)
      if (folded[tile - first] != 0 || !buffers.masks.are_there()) add_tile_totals(tile);
    DepthRun runs[kTiles][kMostRuns];
    int num_runs[kTiles];
    for (std::int64_t tile = first; tile < last; ++tile)
      num_runs[tile - first] =
          to_runs(folded[tile - first], kPanel, 0,
                  std::min<std::int64_t>(range(tile).end - key, count), runs[tile - first]);
    for (std::int64_t j = 0; j < value_width(); j += kPanel)
      for (std::int64_t tile = first; tile < last; ++tile)
        if (num_runs[tile - first] > 0)
          multiply<kScoreStride, 1, true>(scores(tile), buffers.values + j * kTileKeys,
                                          runs[tile - first], num_runs[tile - first],
                                          buffers.sums + (j * num_rows() + tile * kRows * kPanel));
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
