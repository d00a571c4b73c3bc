// SPDX-License-Identifier: Apache-2.0
// A block of keys against a block of rows of attention's backward, in fp32.
#pragma once
#include "base/rounding.h"
#include "kernels/cpu/attention/attention_dropout.h"
#include "kernels/cpu/attention/attention_tiles.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// One block of keys against one block of rows, all packed.
struct GradientStep {
  using Buffers = AttentionGradientBuffers;
  static constexpr std::int64_t kGradientRows = Buffers::kBlocking.gradient_rows,
                                kGradientKeys = Buffers::kBlocking.gradient_keys;
  static constexpr std::int64_t kTilePart = kPanel;  // keys of a register tile

  const Buffers& b;
  std::int64_t key_width, value_width;  // padded
  std::int64_t num_rows, num_keys;      // num_rows: whole register tiles
  float scale, kept_scale;
  SeenRows seen{};

  GradientStep(const AttentionShape& shape, const Buffers& buffers, std::int64_t rows,
               std::int64_t keys)
      : b(buffers),
        key_width(padded(shape.key_width)),
        value_width(padded(shape.value_width)),
        num_rows(round_up(rows, kRows)),
        num_keys(keys),
        scale(shape.scale),
        kept_scale(shape.kept_scale) {}

  // Keys from `first` on; no row has added to their dk and dv.
  template <class T>
  void start(const HeadRows<const T>& k, const HeadRows<const T>& v, std::int64_t first) const {
    pack(k, first, num_keys, 1.0f, kGradientKeys, b.keys);
    pack_across(k, first, num_keys, b.keys_across);
    pack_across(v, first, num_keys, b.values_across);
    clear_sums(b.dk, key_width);
    clear_sums(b.dv, value_width);
  }
  // For the block's keys, in panels.
  void clear_sums(float* sums, std::int64_t width) const {
    for (std::int64_t j = 0; j < width; j += kPanel)
      std::fill_n(sums + j * kGradientKeys, round_up(num_keys, kRows) * kPanel, 0.0f);
  }
  // dk and dv of the keys from `first` on, after all rows.
  template <class T>
  void finish(const HeadRows<T>& dk, const HeadRows<T>& dv, std::int64_t first) const {
    for (std::int64_t s = 0; s < num_keys; ++s) {
      // Queries are scaled to base 2.
      unpack_row(b.dk, kGradientKeys, s, kLn2 * kept_scale, dk, first + s);
      unpack_row(b.dv, kGradientKeys, s, kept_scale, dv, first + s);
    }
  }
  // Rows that see a key.
  template <class T>
  void pack_rows(const HeadRows<const T>& q, const HeadRows<const T>& dout,
                 const RowBlock& rows) const {
    for (int r = 0; r < seen.num_runs; ++r) {
      const std::int64_t at = seen.runs[r].begin, first = rows.first + at,
                         count = std::min(seen.runs[r].end, rows.count) - at;
      pack(q, first, count, scale * kLog2E, kGradientRows, b.queries, at);
      pack(dout, first, count, 1.0f, kGradientRows, b.douts, at);
    }
  }
  // Adds dq of `count` rows to `sums`; the first step only writes there.
  void add_dq(std::int64_t count, bool is_first, float* sums) const {
    const auto add = [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t j = 0; j < key_width; j += kPanel) {
        const float* added = b.dq + j * kGradientRows;
        float* to = sums + j * count;
        for (std::int64_t i = first * kPanel; i < last * kPanel; i += kLanes)
          store(to + i, is_first ? load(added + i) : load(to + i) + load(added + i));
      }
    };
    if (is_first) return add(0, count);
    for (int r = 0; r < seen.num_runs; ++r)
      add(seen.runs[r].begin, std::min<std::int64_t>(seen.runs[r].end, count));
  }
  // Sums of dq, of `count` rows, become dq of row t.
  template <class T>
  void write_dq(const float* sums, std::int64_t count, std::int64_t row, const HeadRows<T>& dq,
                std::int64_t t) const {
    unpack_row(sums, count, row, scale * kept_scale, dq, t);
  }

  // For a register tile of rows and a panel of keys: writes p to weights and ds to gradients. They
  // are 0 where a row does not see a key.
  template <bool kMasked>
  __attribute__((noinline)) void weigh(std::int64_t row, std::int64_t key) const {
    float* weights = b.weights + row * kGradientStride + key;
    float* gradients = b.gradients + row * kGradientStride + key;
    Sums sums;
    fill(sums, b.minus_lse + row);
    multiply_add_panels(sums, b.queries + row * kPanel, kGradientRows,
                        b.keys_across + key * key_width, key_width);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        store(weights + i * kGradientStride + v * kLanes, sums[i][v]);
#pragma GCC unroll 3
    for (int i = 0; i < kRows; i += 2) {
      float *first = weights + i * kGradientStride, *second = first + kGradientStride;
      Floats p[] = {load(first), load(first + kLanes), load(second), load(second + kLanes)};
      exp2(p);
      if constexpr (kMasked) {
        mask(row + i, key, p[0], p[1]);
        mask(row + i + 1, key, p[2], p[3]);
      }
      store(first, p[0]);
      store(first + kLanes, p[1]);
      store(second, p[2]);
      store(second + kLanes, p[3]);
    }
    fill(sums, b.minus_delta + row);
    multiply_add_panels(sums, b.douts + row * kPanel, kGradientRows,
                        b.values_across + key * value_width, value_width);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        store(gradients + i * kGradientStride + v * kLanes,
              sums[i][v] * load(weights + i * kGradientStride + v * kLanes));
  }

  // Takes what dropout drops from p, and from dp in ds: p · (0 − delta) is left there.
  __attribute__((noinline)) void drop(std::int64_t row, std::int64_t key) const {
    for (std::int64_t i = row; i < row + kRows; ++i) {
      const auto kept = static_cast<std::uint32_t>(b.kept.of(i, key));
      float *p = b.weights + i * kGradientStride + key,
            *ds = b.gradients + i * kGradientStride + key;
      for (int v = 0; v < kVectors; ++v, p += kLanes, ds += kLanes) {
        const Ints lanes = lanes_of(kept, v);
        store(ds, lanes ? load(ds) : b.minus_delta[i] * load(p));
        store(p, lanes ? load(p) : Floats{});
      }
    }
  }

  // 0 for keys of the panel that the row does not see.
  ANABATIC_INLINE void mask(std::int64_t row, std::int64_t key, Floats& first,
                            Floats& second) const {
    const std::uint32_t keys = b.masks.are_there()
                                   ? static_cast<std::uint32_t>(b.masks.bits(row, key, kPanel))
                                   : visible_keys(b.begins[row] - key, b.ends[row] - key);
    first = lanes_of(keys, 0) ? first : Floats{};
    second = lanes_of(keys, 1) ? second : Floats{};
  }

  // For a register tile of rows and a panel of keys: whether a row sees a key, and whether all rows
  // see all keys.
  bool sees(std::int64_t row, std::int64_t key) const {
    if (b.masks.are_there()) return (b.masks.tiles[row / kRows].any >> key / kPanel & 1) != 0;
    const TileRange& tile = b.tiles[row / kRows];
    return tile.end > key && tile.begin < key + kPanel;
  }
  bool is_full(std::int64_t row, std::int64_t key) const {
    if (b.masks.are_there()) return (b.masks.tiles[row / kRows].full >> key / kPanel & 1) != 0;
    const TileRange& tile = b.tiles[row / kRows];
    return tile.full_begin <= key && key + kPanel <= tile.full_end;
  }
  // Whether products leave out the rows of a register tile.
  bool is_unseen(std::int64_t row) const {
    return b.masks.are_there() && b.masks.tiles[row / kRows].any == 0;
  }

  void weigh_all() const {
    for (std::int64_t key = 0; key < num_keys; key += kPanel)
      for (std::int64_t row = 0; row < num_rows; row += kRows) {
        if (is_unseen(row)) continue;
        if (!sees(row, key))
          clear(row, key);
        else if (is_full(row, key))
          weigh<false>(row, key);
        else
          weigh<true>(row, key);
        if (b.kept.are_there() && sees(row, key)) drop(row, key);
      }
  }

  void clear(std::int64_t row, std::int64_t key) const {
    for (std::int64_t i = row * kGradientStride + key; i < (row + kRows) * kGradientStride;
         i += kGradientStride)
      for (int v = 0; v < kVectors; ++v) {
        store(b.weights + i + v * kLanes, Floats{});
        store(b.gradients + i + v * kLanes, Floats{});
      }
  }

  // Rows that see one of kRows keys from `key` on, as a run of rows.
  int row_run(std::int64_t key, DepthRun* run) const {
    std::int64_t begin = 0, end = num_rows;
    const auto sees_one = [&](std::int64_t row) {
      const TileRange& tile = b.tiles[row / kRows];
      return tile.begin < key + kRows && tile.end > key;
    };
    while (begin < end && !sees_one(begin)) begin += kRows;
    while (begin < end && !sees_one(end - kRows)) end -= kRows;
    *run = {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
    return begin < end ? 1 : 0;
  }

  // Panels of sums over rows: to[key] += Σ of[row, key] · with[row].
  void add_over_rows(const float* of, const float* with, std::int64_t width, float* to) const {
    for (std::int64_t j = 0; j < width; j += kPanel) {
      TileRuns listed;
      for (std::int64_t key = 0; key < num_keys; key += kRows) {
        if (b.masks.are_there())
          listed.find(
              b.masks, num_rows / kRows, kRows,
              std::uint32_t{1} << key / kPanel | std::uint32_t{1} << (key + kRows - 1) / kPanel);
        else
          listed.count = row_run(key, listed.runs);
        if (listed.count > 0)
          multiply<1, kGradientStride, true>(of + key, with + j * kGradientRows, listed.runs,
                                             listed.count, to + j * kGradientKeys + key * kPanel);
      }
    }
  }

  // dq := ds · keys.
  void multiply_keys() const {
    DepthRun runs[kMostRuns];
    for (std::int64_t j = 0; j < key_width; j += kPanel)
      for (std::int64_t row = 0; row < num_rows; row += kRows) {
        const TileRange& tile = b.tiles[row / kRows];
        runs[0] = {std::min(tile.begin, tile.end), tile.end};
        const int num_runs =
            b.masks.are_there() ? to_runs(b.masks.tiles[row / kRows].any, kPanel, 0, tile.end, runs)
                                : 1;
        multiply<kGradientStride, 1, false>(b.gradients + row * kGradientStride,
                                            b.keys + j * kGradientKeys, runs, num_runs,
                                            b.dq + j * kGradientRows + row * kPanel);
      }
  }

  void run() const {
    weigh_all();
    add_over_rows(b.weights, b.douts, value_width, b.dv);
    add_over_rows(b.gradients, b.queries, key_width, b.dk);
    multiply_keys();
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
