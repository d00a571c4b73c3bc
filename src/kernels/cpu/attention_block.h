// SPDX-License-Identifier: Apache-2.0
// A block of rows of attention's forward against tiles of keys, in fp32.
#pragma once
#include <limits>

#include "kernels/cpu/attention_tiles.h"

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

  const AttentionShape& shape;
  const Buffers& buffers;
  std::int64_t tiles_per_head, num_tiles;  // of rows
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
  // For a strip of row tiles [first, last), once all of its scores of a tile of keys are computed.
  void add_tile_totals(std::int64_t first, std::int64_t last) const {
    for (std::int64_t row = first * kRows; row < last * kRows; ++row)
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
  template <class T>
  void pack_keys(const HeadRows<const T>& k, const HeadRows<const T>& v, std::int64_t first,
                 std::int64_t count) const {
    pack_across(k, first, count, buffers.keys);
    pack(v, first, count, 1.0f, kTileKeys, buffers.values);
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
    if (!is_small(added)) return fold_row(row, {0, kPanel, false}, before, scores);
    store(scores, first);
    store(scores + kLanes, second);
    store(tile_total(row), load(tile_total(row)) + added);
  }

  void fold_masked(std::int64_t tile, std::int64_t key, std::int64_t before, float* scores) const {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const std::int64_t of_head = tile % tiles_per_head * kRows + i;
      const auto begin = static_cast<std::int32_t>(buffers.begins[of_head] - key),
                 end = static_cast<std::int32_t>(buffers.ends[of_head] - key);
      fold_row(tile * kRows + i, {begin, end, begin >= 0}, before, scores + i * kScoreStride);
    }
  }

  // The keys of a panel that a row sees; whether it is the first panel that it sees.
  struct PanelRange {
    std::int32_t begin, end;
    bool is_first;
  };

  __attribute__((noinline)) void fold_row(std::int64_t row, PanelRange sees, std::int64_t before,
                                          float* scores) const {
    if (sees.begin >= std::min<std::int32_t>(sees.end, kPanel) || sees.end <= 0) {
      store(scores, Floats{});
      store(scores + kLanes, Floats{});
      return;
    }
    const Ints lanes[kVectors] = {within(0, sees.begin, sees.end), within(1, sees.begin, sees.end)};
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

  // The strip of row tiles [first, last) against the packed tile of keys [key, key + count).
  void fold_strip(std::int64_t first, std::int64_t last, std::int64_t key,
                  std::int64_t count) const {
    std::fill(buffers.tile_totals, buffers.tile_totals + kStripRows * kLanes, 0.0f);
    const auto first_panel = [&](const TileRange& sees) {
      return std::max(sees.begin / kPanel * kPanel - key, std::int64_t{0});
    };
    for (std::int64_t j = 0; j < count; j += kPanel) {
      const std::int64_t panel = key + j;
      const auto sees_panel = [&](const TileRange& sees) {
        return sees.begin < panel + kPanel && sees.end > panel;
      };
      for (std::int64_t tile = first; tile < last; ++tile)
        if (sees_panel(range(tile))) score(tile, buffers.keys + j * key_width(), scores(tile) + j);
      for (std::int64_t tile = first; tile < last; ++tile) {
        const TileRange& sees = range(tile);
        if (!sees_panel(sees)) continue;
        // The first panel of a row is not full: its maximum is not known yet.
        if (sees.full_begin < panel && panel + kPanel <= sees.full_end)
          fold_full(tile, j - first_panel(sees), scores(tile) + j);
        else
          fold_masked(tile, panel, j - first_panel(sees), scores(tile) + j);
      }
    }
    add_tile_totals(first, last);
    for (std::int64_t j = 0; j < value_width(); j += kPanel)
      for (std::int64_t tile = first; tile < last; ++tile) {
        const std::int64_t begin = first_panel(range(tile)),
                           end = std::min<std::int64_t>(range(tile).end - key, count);
        if (begin < end)
          multiply<kScoreStride, 1, true>(
              scores(tile) + begin, buffers.values + j * kTileKeys + begin * kPanel, end - begin,
              buffers.sums + (j * num_rows() + tile * kRows * kPanel));
      }
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
