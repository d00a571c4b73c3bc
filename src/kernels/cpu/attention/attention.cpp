// SPDX-License-Identifier: Apache-2.0
// Tiled attention with an online softmax (Dao, FlashAttention-2). A task holds a block of rows of
// some heads that share their keys; tiles of keys are packed once and pass by.
//
// Scores stay in base 2. A row takes its maximum from the first panel that it sees and keeps it:
// in fp32 any maximum will do until a sum grows too large, and then the row is scaled down. What a
// row computes depends on its own keys alone, and tiles begin at multiples of their size from its
// key_begin: decoding gives the bits of the full forward. A sink joins a row's sum at its end.
#if defined(__AVX512BF16__)
#include "base/rounding.h"
#include "kernels/cpu/attention/attention_pair_block.h"
#else
#include "kernels/cpu/attention/attention_block.h"
#endif
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

using Buffers = ForwardBlock::Buffers;
constexpr AttentionBlocking kBlocking = Buffers::kBlocking;
constexpr std::int64_t kTileKeys = ForwardBlock::kTileKeys;
// Keys of a tile that are prefetched where lists may leave out the rest.
constexpr std::int64_t kFirstListedKeys = 64;

struct Forward {
  const Arguments& args;
  AttentionShape shape;
  KeyRanges ranges;
  KeyLists lists;
  std::span<const RowBlock> row_blocks;
  std::optional<KeptKeys> kept;

  bool has_sinks() const {
    return args.inputs.size() - (lists.are_there() ? 2 : 0) - (shape.drops() ? 1 : 0) > 5;
  }
  // The last rows of a document see the most keys: they go first.
  std::int64_t tasks_per_block() const { return shape.num_heads / shape.heads_per_task(); }
  const RowBlock& rows_of(std::int64_t task) const {
    return row_blocks[row_blocks.size() - 1 - static_cast<std::size_t>(task / tasks_per_block())];
  }
  std::int64_t head_of(std::int64_t task) const {
    return task % tasks_per_block() * shape.heads_per_task();
  }
  std::int64_t num_tasks() const {
    return static_cast<std::int64_t>(row_blocks.size()) * tasks_per_block();
  }

  template <class T>
  HeadRows<const T> keys(std::int64_t head) const {
    return {args.inputs[1], head / shape.group(), shape.key_width};
  }
  template <class T>
  HeadRows<const T> values(std::int64_t head) const {
    return {args.inputs[2], head / shape.group(), shape.value_width};
  }
  // The first key from `key` on, counted from the document's first, that a row may see.
  std::int64_t next_key(const RowBlock& rows, std::int64_t head, std::int64_t key) const {
    if (!lists.are_there()) return key;
    const std::int64_t origin = ranges.key_begin[rows.first];
    return lists.next(rows, head, origin + key) - origin;
  }
  std::int64_t first_key(const RowBlock& rows, std::int64_t head) const {
    return next_key(rows, head, tile_of(rows.begin - ranges.key_begin[rows.first]));
  }
  // The tile of keys that a key lies in.
  static std::int64_t tile_of(std::int64_t key) { return key / kTileKeys * kTileKeys; }

  // Prefetches a tile of keys, of which `key` is the first that a row may see. Where lists may
  // leave out others, packing prefetches what follows.
  template <class T>
  void prefetch_keys(const RowBlock& rows, std::int64_t head, std::int64_t key) const {
    const std::int64_t first = ranges.key_begin[rows.first] + key;
    prefetch_keys<T>(
        head, first,
        std::min<std::int64_t>(lists.are_there() ? kFirstListedKeys : kTileKeys, rows.end - first));
  }
  template <class T>
  void prefetch_keys(std::int64_t head, std::int64_t first, std::int64_t count) const {
    prefetch(keys<T>(head), first, count);
    prefetch(values<T>(head), first, count);
  }

  // Packs what it starts with, then prefetches `ahead`, which may be taken next.
  template <class T>
  void block(const RowBlock& rows, std::int64_t head, std::int64_t ahead, const Buffers& b) const {
    const std::int64_t heads = shape.heads_per_task(), tiles = ceil_div(rows.count, kRows),
                       padded_rows = tiles * kRows;
    const ForwardBlock block{
        shape, b, tiles, tiles * heads, {kept ? &*kept : nullptr, rows.first, head}};
    const std::int64_t origin = ranges.key_begin[rows.first], end = rows.end - origin;
    const HeadRows<const T> k = keys<T>(head), v = values<T>(head);
    std::int64_t first = first_key(rows, head);
    prefetch_keys<T>(rows, head, first);
    for (std::int64_t h = 0; h < heads; ++h)
      block.pack_queries(HeadRows<const T>(args.inputs[0], head + h, shape.key_width), rows,
                         h * padded_rows);
    block.clear();
    for (std::int64_t h = 0; h < heads; ++h)
      prefetch(HeadRows<T>(args.outputs[0], head + h, shape.value_width), rows.first, rows.count);
    if (ahead < num_tasks()) {
      const RowBlock& next = rows_of(ahead);
      for (std::int64_t h = 0; h < heads; ++h)
        prefetch(HeadRows<const T>(args.inputs[0], head_of(ahead) + h, shape.key_width), next.first,
                 next.count);
      prefetch_keys<T>(next, head_of(ahead), first_key(next, head_of(ahead)));
    }

    if (lists.are_there()) {
      ListedRows listed(lists, rows, head);
      find_ranges([&](std::int64_t t) { return listed.of(t); }, rows, origin, shape.num_keys,
                  b.begins, b.ends, b.tiles);
    } else {
      find_ranges([&](std::int64_t t) { return ranges.of(t); }, rows, origin, shape.num_keys,
                  b.begins, b.ends, b.tiles);
    }
    while (first < end) {
      const std::int64_t key = tile_of(first), count = std::min(kTileKeys, end - key);
      pack_keys(block, k, v, rows, head, origin + key, count);
      first = next_key(rows, head, key + kTileKeys);
      prefetch_keys<T>(rows, head, first);
      for (std::int64_t tile = 0; tile < block.num_tiles; tile += kStripRows / kRows)
        block.fold_strip(tile, std::min(tile + kStripRows / kRows, block.num_tiles), key, count);
    }
    for (std::int64_t h = 0; h < heads; ++h)
      for_lanes(0, rows.count, [&](std::int64_t i, int n) {
        write_rows<T>(block, rows, i, n, head + h, h * padded_rows + i);
      });
  }

  // The keys of a tile that a row sees, and with lists the masks of rows.
  template <class T>
  void pack_keys(const ForwardBlock& block, const HeadRows<const T>& k, const HeadRows<const T>& v,
                 const RowBlock& rows, std::int64_t head, std::int64_t first,
                 std::int64_t count) const {
    if (!lists.are_there()) return block.pack_keys(k, v, first, 0, count);
    const MaskBuffers& masks = block.buffers.masks;
    fill_masks(lists, rows, head, first, count, masks.words, ForwardBlock::kTilePart, masks.masks,
               masks.tiles);
    std::uint32_t seen = 0;
    for (std::int64_t tile = 0; tile < block.tiles_per_head; ++tile) seen |= masks.tiles[tile].any;
    DepthRun runs[kMostRuns];
    const int num_runs = to_runs(seen, ForwardBlock::kTilePart, 0, count, runs);
    for (int i = 0; i < num_runs; ++i) {
      if (i + 1 < num_runs)
        prefetch_keys<T>(head, first + runs[i + 1].begin, runs[i + 1].end - runs[i + 1].begin);
      block.pack_keys(k, v, first, runs[i].begin, runs[i].end - runs[i].begin);
    }
  }

  // `count` rows, at most kLanes, from the `first`-th of the block on.
  template <class T>
  void write_rows(const ForwardBlock& block, const RowBlock& rows, std::int64_t first, int count,
                  std::int64_t head, std::int64_t row) const {
    const std::int64_t t = rows.first + first;
    float totals[kLanes], factors[kLanes], results[kLanes];
    for (int i = 0; i < count; ++i) totals[i] = static_cast<float>(block.buffers.totals[row + i]);
    const Floats total = load(totals, count),
                 minus_largest = load(block.buffers.minus_largest + row, count);
    const float* sink = has_sinks() ? args.inputs[5].as<const float>() + head : nullptr;
    if (sink == nullptr) {
      store(factors, 1.0f / total);
      store(results, (log2(total) - minus_largest) * kLn2);
    } else {
      join_sink(*sink, total, minus_largest, factors, results);
    }
    const HeadRows<T> out(args.outputs[0], head, shape.value_width);
    float* lse = args.outputs[1].as<float>() + t * shape.num_heads + head;
    const float lse_of_none = sink != nullptr ? *sink : -kInfinity;
    for (int i = 0; i < count; ++i) {
      const bool is_empty = block.buffers.begins[first + i] >= block.buffers.ends[first + i];
      block.write_row(row + i, is_empty ? 0.0f : factors[i] * shape.kept_scale, out, t + i);
      lse[i * shape.num_heads] = is_empty ? lse_of_none : results[i];
    }
  }

  // Factors of the sums of values, and lse, of rows whose exponentials, over that of `largest` (in
  // base 2), add up to `total`. All are scaled down where the sink's is above 1.
  static void join_sink(float sink, Floats total, Floats minus_largest, float* factors,
                        float* lse) {
    const Floats above = minus_largest * kLn2 + sink, shift = max(above, Floats{}),
                 scale = exp(-shift), sum = total * scale + exp(above - shift);
    store(factors, scale / sum);
    store(lse, log2(sum) * kLn2 + (shift - minus_largest * kLn2));
  }
};

}  // namespace

void attention(const Arguments& args) {
  const AttentionShape shape(args);
  const KeyRanges ranges = checked_key_ranges(args, shape);
  Pieces pieces(args.workspace), measure(nullptr);
  const AttentionSpace space(shape, kBlocking, pieces);
  const std::span<RowBlock> row_blocks =
      cut_rows(ranges, shape.num_rows, shape.rows_per_task(kBlocking), space.row_blocks);
  KeyLists lists = checked_key_lists(args, shape, ranges);
  if (lists.are_there()) lists.runs = cut_runs(lists, row_blocks, space.runs);
  const std::size_t draws = args.inputs.size() - (lists.are_there() ? 3 : 1);
  const Forward forward{args, shape, ranges, lists, row_blocks, kept_keys(args, shape, draws)};
  Buffers(shape, measure);
  std::byte* of_threads = pieces.take<std::byte>(0);
  with_operand_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    args.launch.team->for_tasks(forward.num_tasks(), [&](std::int64_t task, int thread) {
      Pieces of_thread(of_threads + thread * measure.used_bytes());
      forward.block<T>(forward.rows_of(task), forward.head_of(task),
                       task + args.launch.team->num_threads(), Buffers(shape, of_thread));
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
