// SPDX-License-Identifier: Apache-2.0
// Tiled attention with an online softmax (Dao, FlashAttention-2). A task holds a block of rows of
// some heads that share their keys; tiles of keys are packed once and pass by.
//
// Scores stay in base 2. A row takes its maximum from the first panel that it sees and keeps it:
// in fp32 any maximum will do until a sum grows too large, and then the row is scaled down. What a
// row computes depends on its own keys alone, and tiles begin at multiples of their size from its
// key_begin: decoding gives the bits of the full forward.
#include <cmath>

#if defined(__AVX512BF16__)
#include "kernels/cpu/attention_pair_block.h"
#else
#include "kernels/cpu/attention_block.h"
#endif
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

using Buffers = ForwardBlock::Buffers;
constexpr AttentionBlocking kBlocking = Buffers::kBlocking;
constexpr std::int64_t kTileKeys = ForwardBlock::kTileKeys;

struct Forward {
  const Arguments& args;
  AttentionShape shape;
  KeyRanges ranges;

  template <class T>
  void block(const RowBlock& rows, std::int64_t head, const Buffers& b) const {
    const std::int64_t heads = shape.heads_per_task(), kv_head = head / shape.group(),
                       tiles = ceil_div(rows.count, kRows), padded_rows = tiles * kRows;
    const ForwardBlock block{shape, b, tiles, tiles * heads};
    const std::int64_t origin = ranges.key_begin[rows.first], end = rows.end - origin;
    const HeadRows<const T> k(args.inputs[1], kv_head, shape.key_width),
        v(args.inputs[2], kv_head, shape.value_width);
    const auto prefetch_keys = [&](std::int64_t key) {
      prefetch(k, origin + key, std::min(kTileKeys, end - key));
      prefetch(v, origin + key, std::min(kTileKeys, end - key));
    };
    std::int64_t key = (rows.begin - origin) / kTileKeys * kTileKeys;
    prefetch_keys(key);
    for (std::int64_t h = 0; h < heads; ++h)
      block.pack_queries(HeadRows<const T>(args.inputs[0], head + h, shape.key_width), rows,
                         h * padded_rows);
    block.clear();

    find_ranges(ranges, rows, origin, shape.num_keys, b.begins, b.ends, b.tiles);
    for (; key < end; key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      block.pack_keys(k, v, origin + key, count);
      prefetch_keys(key + kTileKeys);
      for (std::int64_t tile = 0; tile < block.num_tiles; tile += kStripRows / kRows)
        block.fold_strip(tile, std::min(tile + kStripRows / kRows, block.num_tiles), key, count);
    }
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < rows.count; ++i)
        write_row<T>(block, rows.first + i, head + h, h * padded_rows + i);
  }

  template <class T>
  void write_row(const ForwardBlock& block, std::int64_t t, std::int64_t head,
                 std::int64_t row) const {
    const KeyRange keys = ranges.of(t);
    const bool is_empty = keys.begin >= keys.end;
    const float total = sum_lanes(load(block.totals(row)));
    block.write_row(row, is_empty ? 0.0f : 1.0f / total,
                    HeadRows<T>(args.outputs[0], head, shape.value_width), t);
    args.outputs[1].as<float>()[t * shape.num_heads + head] =
        is_empty ? -kInfinity : (std::log2(total) - block.buffers.minus_largest[row]) * kLn2;
  }
};

}  // namespace

void attention(const Arguments& args) {
  const AttentionShape shape(args);
  const Forward forward{args, shape, checked_key_ranges(args, shape)};
  Pieces pieces(args.workspace), measure(nullptr);
  const AttentionSpace space(shape, kBlocking, pieces);
  const std::span<const RowBlock> blocks =
      cut_rows(forward.ranges, shape.num_rows, shape.rows_per_task(kBlocking), space.row_blocks);
  Buffers(shape, measure);
  std::byte* of_threads = pieces.take<std::byte>(0);
  const auto num_blocks = static_cast<std::int64_t>(blocks.size()),
             head_tasks = shape.num_heads / shape.heads_per_task();
  with_operand_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    // The last rows of a document see the most keys: they go first.
    args.team->for_tasks(num_blocks * head_tasks, [&](std::int64_t task, int thread) {
      Pieces of_thread(of_threads + thread * measure.used_bytes());
      forward.block<T>(blocks[static_cast<std::size_t>(num_blocks - 1 - task / head_tasks)],
                       task % head_tasks * shape.heads_per_task(), Buffers(shape, of_thread));
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
