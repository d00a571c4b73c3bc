// SPDX-License-Identifier: Apache-2.0
// Tiled attention with an online softmax (Dao, FlashAttention-2). A task holds a block of rows of
// some heads that share their keys; tiles of keys are packed once and pass by.
//
// Scores stay in base 2. A row takes its maximum from the first panel that it sees and keeps it:
// in fp32 any maximum will do until a sum grows too large, and then the row is scaled down. What a
// row computes depends on its own keys alone, and tiles begin at multiples of their size from its
// key_begin: decoding gives the bits of the full forward.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/vector_rows.h"

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
  const AttentionShape& shape;
  const AttentionBuffers& buffers;
  std::int64_t tiles_per_head, num_tiles;  // of rows
  std::int64_t num_rows() const { return num_tiles * kRows; }
  std::int64_t key_width() const { return padded(shape.key_width); }
  std::int64_t value_width() const { return padded(shape.value_width); }

  const TileRange& range(std::int64_t tile) const { return buffers.tiles[tile % tiles_per_head]; }
  float* scores(std::int64_t tile) const {
    return buffers.scores + tile % (kStripRows / kRows) * kRows * kScoreStride;
  }
  // Lanes of the sum of a row's exponentials.
  float* totals(std::int64_t row) const { return buffers.totals + row * kLanes; }

  // sums := queries of a tile · keys of a panel - maximum.
  ANABATIC_INLINE void multiply_keys(std::int64_t tile, const float* keys, const float* minus,
                                     Sums& sums) const {
    fill(sums, minus);
    multiply_add_panels(sums, buffers.queries + tile * kRows * kPanel, num_rows(), keys,
                        key_width());
  }

  // Of a panel that every row of the tile sees: scores := exponentials, added to the totals. False
  // if they are too large; then only scores are changed.
  __attribute__((noinline)) bool fold(std::int64_t tile, const float* keys, float* scores) const {
    alignas(32) float minus[kRows];
    for (int i = 0; i < kRows; ++i) minus[i] = -buffers.largest[tile * kRows + i];
    Sums sums;
    multiply_keys(tile, keys, minus, sums);
    Floats added[kRows], all{};
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Floats first = exp2(sums[i][0]), second = exp2(sums[i][1]);
      store(scores + i * kScoreStride, first);
      store(scores + i * kScoreStride + kLanes, second);
      added[i] = first + second;
      all += added[i];
    }
    if (!is_small(all)) return false;
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      float* total = totals(tile * kRows + i);
      store(total, load(total) + added[i]);
    }
    return true;
  }

  // The same of any panel, row by row; `before` scores of the same strip stand left of it.
  void fold_rows(std::int64_t tile, std::int64_t key, const float* keys, std::int64_t before,
                 float* scores) const {
    alignas(64) float raw[kRows * kPanel];
    alignas(32) float minus[kRows];
    for (int i = 0; i < kRows; ++i) {
      const float largest = buffers.largest[tile * kRows + i];
      minus[i] = largest == -kInfinity ? 0.0f : -largest;
    }
    Sums sums;
    multiply_keys(tile, keys, minus, sums);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      store(raw + i * kPanel, sums[i][0]);
      store(raw + i * kPanel + kLanes, sums[i][1]);
    }
    for (int i = 0; i < kRows; ++i)
      fold_row(tile * kRows + i, tile % tiles_per_head * kRows + i, key, raw + i * kPanel, before,
               scores + i * kScoreStride);
  }

  void fold_row(std::int64_t row, std::int64_t of_head, std::int64_t key, const float* raw,
                std::int64_t before, float* scores) const {
    const auto begin = static_cast<std::int32_t>(buffers.begins[of_head] - key),
               end = static_cast<std::int32_t>(buffers.ends[of_head] - key);
    if (begin >= end || begin >= kPanel || end <= 0) {
      store(scores, Floats{});
      store(scores + kLanes, Floats{});
      return;
    }
    const Ints sees[kVectors] = {within(0, begin, end), within(1, begin, end)};
    const Floats x[kVectors] = {load(raw), load(raw + kLanes)};
    float& largest = buffers.largest[row];
    const auto exponentials = [&](float top) {
      const Floats first = sees[0] ? exp2(x[0] - top) : Floats{},
                   second = sees[1] ? exp2(x[1] - top) : Floats{};
      store(scores, first);
      store(scores + kLanes, second);
      return first + second;
    };
    const auto top = [&] {
      return max_lanes(
          max(sees[0] ? x[0] : broadcast(-kInfinity), sees[1] ? x[1] : broadcast(-kInfinity)));
    };
    Floats added;
    if (largest == -kInfinity) {
      largest = top();
      added = exponentials(largest);
    } else {
      added = exponentials(0.0f);
      if (!is_small(added)) {
        const float more = top();
        scale_row(row, exp2(broadcast(-more))[0], before, scores);
        largest += more;
        added = exponentials(more);
      }
    }
    store(totals(row), load(totals(row)) + added);
  }

  // What a row has summed so far, and the scores of this strip that are not in its sums yet.
  void scale_row(std::int64_t row, float factor, std::int64_t before, float* scores) const {
    store(totals(row), factor * load(totals(row)));
    for (std::int64_t j = 0; j < value_width(); j += kLanes) {
      float* sum = buffers.sums + (j / kPanel * num_rows() + row) * kPanel + j % kPanel;
      store(sum, factor * load(sum));
    }
    for (std::int64_t j = -before; j < 0; j += kLanes) store(scores + j, factor * load(scores + j));
  }

  // The strip of row tiles [first, last) against the packed tile of keys [key, key + count).
  void fold_strip(std::int64_t first, std::int64_t last, std::int64_t key,
                  std::int64_t count) const {
    for (std::int64_t j = 0; j < count; j += kPanel)
      for (std::int64_t tile = first; tile < last; ++tile) {
        const TileRange& sees = range(tile);
        const std::int64_t panel = key + j;
        if (sees.end <= panel || sees.begin >= panel + kPanel) continue;
        const float* keys = buffers.keys + j * key_width();
        const bool is_full = sees.full_begin < panel && panel + kPanel <= sees.full_end;
        if (is_full && fold(tile, keys, scores(tile) + j)) continue;
        const std::int64_t begin = std::max(sees.begin / kPanel * kPanel - key, std::int64_t{0});
        fold_rows(tile, panel, keys, j - begin, scores(tile) + j);
      }
    for (std::int64_t j = 0; j < value_width(); j += kPanel)
      for (std::int64_t tile = first; tile < last; ++tile) {
        const TileRange& sees = range(tile);
        const std::int64_t begin = std::max(sees.begin / kPanel * kPanel - key, std::int64_t{0}),
                           end = std::min<std::int64_t>(sees.end - key, count);
        if (begin < end)
          multiply<kScoreStride, 1, true>(
              scores(tile) + begin, buffers.values + j * kTileKeys + begin * kPanel, end - begin,
              buffers.sums + (j * num_rows() + tile * kRows * kPanel));
      }
  }
};

struct Forward {
  const Arguments& args;
  AttentionShape shape;
  KeyRanges ranges;

  template <class T>
  void block(const RowBlock& rows, std::int64_t head, const AttentionBuffers& b) const {
    const std::int64_t heads = shape.heads_per_task(), kv_head = head / shape.group(),
                       tiles = ceil_div(rows.count, kRows), padded_rows = tiles * kRows;
    const ForwardBlock block{shape, b, tiles, tiles * heads};
    const std::int64_t num_rows = block.num_rows();
    for (std::int64_t h = 0; h < heads; ++h)
      pack_head<T>(rows, head + h, b.queries + h * padded_rows * kPanel, num_rows);
    std::fill(b.sums, b.sums + num_rows * block.value_width(), 0.0f);
    std::fill(b.totals, b.totals + num_rows * kLanes, 0.0f);
    std::fill(b.largest, b.largest + num_rows, -kInfinity);

    const std::int64_t origin = ranges.key_begin[rows.first];
    find_ranges(ranges, rows, origin, shape.num_keys, b.begins, b.ends, b.tiles);
    const HeadRows<const T> k(args.inputs[1], kv_head, shape.key_width),
        v(args.inputs[2], kv_head, shape.value_width);
    const std::int64_t end = rows.end - origin;
    for (std::int64_t key = (rows.begin - origin) / kTileKeys * kTileKeys; key < end;
         key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      pack_across(k, origin + key, count, b.keys);
      pack(v, origin + key, count, 1.0f, kTileKeys, b.values);
      for (std::int64_t tile = 0; tile < block.num_tiles; tile += kStripRows / kRows)
        block.fold_strip(tile, std::min(tile + kStripRows / kRows, block.num_tiles), key, count);
    }
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < rows.count; ++i)
        write_row<T>(block, rows.first + i, head + h, h * padded_rows + i);
  }

  template <class T>
  void pack_head(const RowBlock& rows, std::int64_t head, float* to, std::int64_t num_rows) const {
    pack(HeadRows<const T>(args.inputs[0], head, shape.key_width), rows.first, rows.count,
         shape.scale * kLog2E, num_rows, to);
  }

  template <class T>
  void write_row(const ForwardBlock& block, std::int64_t t, std::int64_t head,
                 std::int64_t row) const {
    const KeyRange keys = ranges.of(t);
    const bool is_empty = keys.begin >= keys.end;
    const float total = sum_lanes(load(block.totals(row)));
    const HeadRows<T> out(args.outputs[0], head, shape.value_width);
    unpack_row(block.buffers.sums, block.num_rows(), row, is_empty ? 0.0f : 1.0f / total,
               shape.value_width, out.row(t));
    args.outputs[1].as<float>()[t * shape.num_heads + head] =
        is_empty ? -kInfinity : (block.buffers.largest[row] + std::log2(total)) * kLn2;
  }
};

}  // namespace

void attention(const Arguments& args) {
  const AttentionShape shape(args);
  const Forward forward{args, shape, checked_key_ranges(args, shape)};
  Pieces pieces(args.workspace), measure(nullptr);
  const AttentionSpace space(shape, pieces);
  const std::span<const RowBlock> blocks =
      cut_rows(forward.ranges, shape.num_rows, shape.rows_per_task(), space.row_blocks);
  AttentionBuffers(shape, measure);
  std::byte* of_threads = pieces.take<std::byte>(0);
  const auto num_blocks = static_cast<std::int64_t>(blocks.size()),
             head_tasks = shape.num_heads / shape.heads_per_task();
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    // The last rows of a document see the most keys: they go first.
    args.team->for_tasks(num_blocks * head_tasks, [&](std::int64_t task, int thread) {
      Pieces of_thread(of_threads + thread * measure.used_bytes());
      forward.block<T>(blocks[static_cast<std::size_t>(num_blocks - 1 - task / head_tasks)],
                       task % head_tasks * shape.heads_per_task(),
                       AttentionBuffers(shape, of_thread));
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
