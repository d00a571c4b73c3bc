// SPDX-License-Identifier: Apache-2.0
// Tiled attention with an online softmax (Dao, FlashAttention-2): a task holds a block of rows of
// one head while tiles of keys pass by; tiles that no row of the block sees are left out.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Turns a row of scores[columns] into exponentials below the running maximum, 0 for keys outside of
// [begin, end); updates maximum, total and the row of sums[width].
void fold_row(float* scores, std::int64_t columns, std::int64_t begin, std::int64_t end,
              float* largest, float* total, float* sums, std::int64_t width) {
  if (begin >= end) {
    std::fill(scores, scores + columns, 0.0f);
    return;
  }
  std::fill(scores, scores + begin, -kInfinity);
  std::fill(scores + end, scores + columns, -kInfinity);
  Floats largest_lanes = broadcast(*largest);
  for (std::int64_t j = 0; j < columns; j += kLanes)
    largest_lanes = max(load(scores + j), largest_lanes);
  const float now = max_lanes(largest_lanes);
  Floats added{};
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const Floats p = exp(load(scores + j) - now);
    added += p;
    store(scores + j, p);
  }
  if (now > *largest) {
    const float shrink = exp(broadcast(*largest - now))[0];
    *total *= shrink;
    for (std::int64_t j = 0; j < width; j += kLanes) store(sums + j, shrink * load(sums + j));
    *largest = now;
  }
  *total += sum_lanes(added);
}

template <class T>
void forward_block(const Arguments& args, const AttentionShape& shape, const KeyRanges& ranges,
                   std::int64_t head, std::int64_t first, const AttentionBuffers& buffers) {
  const std::int64_t num_rows = std::min(kBlockRows, shape.num_rows - first),
                     kv_head = head / shape.group(), key_stride = columns(args.inputs[1]),
                     value_stride = columns(args.inputs[2]), width = shape.padded_value_width();
  read_rows(args.inputs[0].as<const T>() + first * columns(args.inputs[0]) + head * shape.key_width,
            columns(args.inputs[0]), num_rows, shape.key_width, shape.scale, buffers.rows);
  std::fill(buffers.sums, buffers.sums + kBlockRows * width, 0.0f);
  std::fill(buffers.largest, buffers.largest + num_rows, -kInfinity);
  std::fill(buffers.totals, buffers.totals + num_rows, 0.0f);

  const KeyRange span = ranges.span(first, first + num_rows);
  // Tiles begin at multiples of their size, so that a row's bits depend on its own keys alone: with
  // a window, decoding gives those of the full forward.
  for (std::int64_t key = span.begin / kTileRows * kTileRows; key < span.end; key += kTileRows) {
    const std::int64_t count = std::min(kTileRows, span.end - key),
                       padded = round_up(count, kLanes);
    read_rows(args.inputs[1].as<const T>() + key * key_stride + kv_head * shape.key_width,
              key_stride, count, shape.key_width, 1.0f, buffers.keys);
    transpose(buffers.keys, count, shape.padded_key_width(), buffers.keys_across);
    read_rows(args.inputs[2].as<const T>() + key * value_stride + kv_head * shape.value_width,
              value_stride, count, shape.value_width, 1.0f, buffers.values);
    multiply_across(buffers.rows, num_rows, shape.key_width, buffers.keys_across, padded,
                    buffers.scores);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const KeyRange keys = ranges.of(first + i);
      fold_row(buffers.scores + i * kTileRows, padded,
               std::clamp<std::int64_t>(keys.begin - key, 0, count),
               std::clamp<std::int64_t>(keys.end - key, 0, count), buffers.largest + i,
               buffers.totals + i, buffers.sums + i * width, width);
    }
    add_weighted(buffers.scores, num_rows, count, buffers.values, width, buffers.sums);
  }

  const std::int64_t out_stride = columns(args.outputs[0]);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const float total = buffers.totals[i];
    const KeyRange keys = ranges.of(first + i);
    const bool is_empty = keys.begin >= keys.end;
    write_rows(buffers.sums + i * width, 1, shape.value_width, is_empty ? 0.0f : 1.0f / total,
               args.outputs[0].as<T>() + (first + i) * out_stride + head * shape.value_width,
               out_stride);
    args.outputs[1].as<float>()[(first + i) * shape.num_heads + head] =
        is_empty ? -kInfinity
                 : static_cast<float>(buffers.largest[i] + std::log(static_cast<double>(total)));
  }
}

}  // namespace

void attention(const Arguments& args) {
  const AttentionShape shape(args);
  const KeyRanges ranges = checked_key_ranges(args, shape);
  const std::int64_t num_blocks = shape.num_row_blocks();
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    // The last rows see the most keys: they go first.
    args.team->for_tasks(num_blocks * shape.num_heads, [&](std::int64_t task, int thread) {
      Pieces measure(nullptr);
      const AttentionBuffers measured(shape, measure);
      Pieces pieces(reinterpret_cast<float*>(args.workspace) + thread * measure.used());
      forward_block<T>(args, shape, ranges, task % shape.num_heads,
                       (num_blocks - 1 - task / shape.num_heads) * kBlockRows,
                       AttentionBuffers(shape, pieces));
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
