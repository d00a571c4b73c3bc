// SPDX-License-Identifier: Apache-2.0
// With p = exp(score − lse), dp = dout·v and delta = dout·out: ds = p · (dp − delta); then
// dv += p·dout, dq += scale·ds·k, dk += scale·ds·q (Dao et al., FlashAttention, appendix B.4).
//
// A task holds a block of keys of one kv head with its dk and dv, while the blocks of rows that see
// them pass by: five products, p and ds computed once. What a task adds to dq goes to sums in the
// workspace, in ascending order of key blocks: each takes its turn. Tasks are handed out in that
// order too, so whom a task waits for is running or done. Rows pass by from the last to the first,
// which in a causal document keeps the tasks of one head one step apart.
#include <atomic>
#include <thread>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// One block of keys against one block of rows, all packed.
struct GradientStep {
  const AttentionGradientBuffers& b;
  std::int64_t key_width, value_width;  // padded
  std::int64_t num_rows, num_keys;      // num_rows: whole register tiles

  // Of a register tile of rows and a panel of keys: p to weights, ds to gradients; 0 where a row
  // does not see a key.
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

  // 0 for keys of the panel that the row does not see.
  ANABATIC_INLINE void mask(std::int64_t row, std::int64_t key, Floats& first,
                            Floats& second) const {
    const auto begin = static_cast<std::int32_t>(b.begins[row] - key),
               end = static_cast<std::int32_t>(b.ends[row] - key);
    first = within(0, begin, end) ? first : Floats{};
    second = within(1, begin, end) ? second : Floats{};
  }

  void weigh_all() const {
    for (std::int64_t key = 0; key < num_keys; key += kPanel)
      for (std::int64_t row = 0; row < num_rows; row += kRows) {
        const TileRange& sees = b.tiles[row / kRows];
        if (sees.end <= key || sees.begin >= key + kPanel)
          clear(row, key);
        else if (sees.full_begin <= key && key + kPanel <= sees.full_end)
          weigh<false>(row, key);
        else
          weigh<true>(row, key);
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

  // Panels of sums over rows: to[key] += Σ of[row, key] · with[row].
  void add_over_rows(const float* of, const float* with, std::int64_t width, float* to) const {
    for (std::int64_t j = 0; j < width; j += kPanel)
      for (std::int64_t key = 0; key < num_keys; key += kRows) {
        std::int64_t begin = 0, end = num_rows;
        const auto sees = [&](std::int64_t row) {
          const TileRange& tile = b.tiles[row / kRows];
          return tile.begin < key + kRows && tile.end > key;
        };
        while (begin < end && !sees(begin)) begin += kRows;
        while (begin < end && !sees(end - kRows)) end -= kRows;
        if (begin < end)
          multiply<1, kGradientStride, true>(of + begin * kGradientStride + key,
                                             with + j * kGradientRows + begin * kPanel, end - begin,
                                             to + j * kGradientKeys + key * kPanel);
      }
  }

  // dq := ds · keys.
  void multiply_keys() const {
    for (std::int64_t j = 0; j < key_width; j += kPanel)
      for (std::int64_t row = 0; row < num_rows; row += kRows) {
        const TileRange& sees = b.tiles[row / kRows];
        const std::int64_t begin = std::min(sees.begin, sees.end);
        multiply<kGradientStride, 1, false>(b.gradients + row * kGradientStride + begin,
                                            b.keys + j * kGradientKeys + begin * kPanel,
                                            sees.end - begin,
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

struct Gradient {
  const Arguments& args;
  AttentionShape shape;
  KeyRanges ranges;
  AttentionGradientSpace space;
  std::span<const RowBlock> row_blocks;
  std::span<const KeyBlock> key_blocks;

  template <class T>
  HeadRows<const T> queries(std::int64_t head) const {
    return {args.inputs[0], head, shape.key_width};
  }
  template <class T>
  HeadRows<const T> douts(std::int64_t head) const {
    return {args.inputs[7], head, shape.value_width};
  }

  // -lse, in base 2, and -delta by heads; dq of rows that see no key.
  template <class T>
  void prepare() const {
    const float* lse = args.inputs[6].as<const float>();
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const KeyRange keys = ranges.of(t);
        const bool is_empty = keys.begin >= keys.end;
        for (std::int64_t head = 0; head < shape.num_heads; ++head) {
          const T *out = HeadRows<const T>(args.inputs[5], head, shape.value_width).row(t),
                  *dout = douts<T>(head).row(t);
          Floats sum{};
          for_lanes(0, shape.value_width, [&](std::int64_t j, int n) {
            sum = madd(load(out + j, n), load(dout + j, n), sum);
          });
          const std::int64_t at = head * shape.num_rows + t;
          space.minus_lse[at] = is_empty ? 0.0f : -kLog2E * lse[t * shape.num_heads + head];
          space.minus_delta[at] = -sum_lanes(sum);
        }
        if (is_empty)
          std::fill_n(args.outputs[0].as<T>() + t * columns(args.outputs[0]),
                      columns(args.outputs[0]), T{});
      }
    };
    args.team->for_range(shape.num_rows, row_grain(shape.num_heads * shape.value_width), run);
  }

  template <class T>
  void key_block(std::int64_t index, std::int64_t kv_head,
                 const AttentionGradientBuffers& b) const {
    const KeyBlock& keys = key_blocks[static_cast<std::size_t>(index)];
    const HeadRows<const T> k(args.inputs[1], kv_head, shape.key_width),
        v(args.inputs[2], kv_head, shape.value_width);
    const std::int64_t key_width = padded(shape.key_width), value_width = padded(shape.value_width);
    prefetch(k, keys.first, keys.count);
    prefetch(v, keys.first, keys.count);
    pack(k, keys.first, keys.count, 1.0f, kGradientKeys, b.keys);
    pack_across(k, keys.first, keys.count, b.keys_across);
    pack_across(v, keys.first, keys.count, b.values_across);
    std::fill(b.dk, b.dk + kGradientKeys * key_width, 0.0f);
    std::fill(b.dv, b.dv + kGradientKeys * value_width, 0.0f);
    for (std::int64_t head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head)
      for (std::int64_t i = keys.end_row_block; i-- > keys.first_row_block;) {
        const RowBlock& rows = row_blocks[static_cast<std::size_t>(i)];
        if (index < rows.first_key_block || index > rows.last_key_block) continue;
        row_block_step<T>(keys, rows, head, i > keys.first_row_block, b);
        const std::int64_t turn = head * static_cast<std::int64_t>(row_blocks.size()) + i;
        add_to_dq<T>(rows, head, static_cast<std::int32_t>(index - rows.first_key_block),
                     index == rows.last_key_block, space.turns[turn], b);
      }
    const HeadRows<T> dk(args.outputs[1], kv_head, shape.key_width),
        dv(args.outputs[2], kv_head, shape.value_width);
    for (std::int64_t s = 0; s < keys.count; ++s) {
      // Queries came scaled to base 2.
      unpack_row(b.dk, kGradientKeys, s, kLn2, dk, keys.first + s);
      unpack_row(b.dv, kGradientKeys, s, 1.0f, dv, keys.first + s);
    }
  }

  template <class T>
  void row_block_step(const KeyBlock& keys, const RowBlock& rows, std::int64_t head, bool has_next,
                      const AttentionGradientBuffers& b) const {
    const std::int64_t num_rows = round_up(rows.count, kRows);
    pack(queries<T>(head), rows.first, rows.count, shape.scale * kLog2E, kGradientRows, b.queries);
    pack(douts<T>(head), rows.first, rows.count, 1.0f, kGradientRows, b.douts);
    if (has_next) {  // the rows before these
      const std::int64_t count = std::min<std::int64_t>(rows.first, kGradientRows);
      prefetch(queries<T>(head), rows.first - count, count);
      prefetch(douts<T>(head), rows.first - count, count);
    }
    const std::int64_t at = head * shape.num_rows + rows.first;
    for (std::int64_t i = 0; i < num_rows; ++i) {
      b.minus_lse[i] = i < rows.count ? space.minus_lse[at + i] : 0.0f;
      b.minus_delta[i] = i < rows.count ? space.minus_delta[at + i] : 0.0f;
    }
    find_ranges(ranges, rows, keys.first, keys.count, b.begins, b.ends, b.tiles);
    GradientStep{b, padded(shape.key_width), padded(shape.value_width), num_rows, keys.count}.run();
  }

  // Adds the dq of a step to the sums of its rows, as the `turn`-th; the last one writes dq.
  template <class T>
  void add_to_dq(const RowBlock& rows, std::int64_t head, std::int32_t turn, bool is_last,
                 std::int32_t& turns, const AttentionGradientBuffers& b) const {
    const std::atomic_ref<std::int32_t> taken(turns);
    while (taken.load(std::memory_order_acquire) != turn) std::this_thread::yield();
    const std::int64_t width = padded(shape.key_width);
    float* sums = space.dq + (head * shape.num_rows + rows.first) * shape.padded_key_width();
    for (std::int64_t j = 0; j < width; j += kPanel, sums += rows.count * kPanel) {
      float* added = b.dq + j * kGradientRows;
      for (std::int64_t i = 0; i < rows.count * kPanel; i += kLanes) {
        const Floats sum = turn == 0 ? load(added + i) : load(sums + i) + load(added + i);
        store(is_last ? added + i : sums + i, sum);
      }
    }
    if (is_last) {
      const HeadRows<T> dq(args.outputs[0], head, shape.key_width);
      for (std::int64_t i = 0; i < rows.count; ++i)
        unpack_row(b.dq, kGradientRows, i, shape.scale, dq, rows.first + i);
    }
    taken.store(turn + 1, std::memory_order_release);
  }

  template <class T>
  void run(std::byte* of_threads) const {
    Pieces measure(nullptr);
    AttentionGradientBuffers(shape, measure);
    args.team->for_tasks(static_cast<std::int64_t>(key_blocks.size()) * shape.num_kv_heads,
                         [&](std::int64_t task, int thread) {
                           Pieces of_thread(of_threads + thread * measure.used_bytes());
                           key_block<T>(task / shape.num_kv_heads, task % shape.num_kv_heads,
                                        AttentionGradientBuffers(shape, of_thread));
                         });
  }
};

}  // namespace

void attention_gradient(const Arguments& args) {
  const AttentionShape shape(args);
  const KeyRanges ranges = checked_key_ranges(args, shape);
  Pieces pieces(args.workspace);
  const AttentionGradientSpace space(shape, pieces);
  const std::span<RowBlock> row_blocks =
      cut_rows(ranges, shape.num_rows, kGradientRows, space.row_blocks);
  const std::span<KeyBlock> key_blocks =
      cut_keys(ranges, shape.num_rows, shape.num_keys, row_blocks, space.key_blocks);
  std::fill_n(space.turns, shape.num_heads * static_cast<std::int64_t>(row_blocks.size()), 0);
  const Gradient gradient{args, shape, ranges, space, row_blocks, key_blocks};
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    gradient.prepare<T>();
    gradient.run<T>(pieces.take<std::byte>(0));
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
