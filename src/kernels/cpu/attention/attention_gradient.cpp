// SPDX-License-Identifier: Apache-2.0
// With p = exp(score − lse), dp = dout·v and delta = dout·out: ds = p · (dp − delta); then
// dv += p·dout, dq += scale·ds·k, dk += scale·ds·q (Dao et al., FlashAttention, appendix B.4).
// Dropout keeps m of p and dp, times 1 / (1 − rate): ds = p · (m·dp − (1 − rate)·delta), and the
// factor comes with the sums: of dv, dq and dk.
//
// A task holds a block of keys of one kv head with its dk and dv, while the blocks of rows that see
// them pass by: five products, p and ds computed once. What a task adds to dq goes to sums in the
// workspace, in ascending order of key blocks: each takes its turn. Tasks are handed out in that
// order too, so whom a task waits for is running or done. Rows pass by from the last to the first,
// which in a causal document keeps the tasks of one head one step apart.
#include <atomic>
#include <thread>

#if defined(__AVX512BF16__)
#include "kernels/cpu/attention/attention_pair_step.h"
#else
#include "kernels/cpu/attention/attention_step.h"
#endif
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

using Buffers = GradientStep::Buffers;
constexpr AttentionBlocking kBlocking = Buffers::kBlocking;

struct Gradient {
  const Arguments& args;
  AttentionShape shape;
  KeyRanges ranges;
  KeyLists lists;
  AttentionGradientSpace space;
  std::span<const RowBlock> row_blocks;
  std::span<const KeyBlock> key_blocks;
  std::optional<KeptKeys> kept;
  std::int64_t first_kv_head = 0, end_kv_head = 0;  // of the slice

  std::int64_t first_head() const { return first_kv_head * shape.group(); }
  // Rows of a head in the space.
  std::int64_t space_row(std::int64_t head, std::int64_t row) const {
    return (head - first_head()) * shape.num_rows + row;
  }

  template <class T>
  HeadRows<const T> queries(std::int64_t head) const {
    return {args.inputs[0], head, shape.key_width};
  }
  template <class T>
  HeadRows<const T> douts(std::int64_t head) const {
    return {args.inputs[7], head, shape.value_width};
  }

  // -lse, in base 2, and -delta by heads; dq of rows that see no key. Where the call asks for it,
  // delta is an output too.
  template <class T>
  void prepare() const {
    const float* lse = args.inputs[6].as<const float>();
    float* delta = args.outputs.size() > 3 ? args.outputs[3].as<float>() : nullptr;
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t head = first_head(); head < end_kv_head * shape.group(); ++head) {
          const T *out = HeadRows<const T>(args.inputs[5], head, shape.value_width).row(t),
                  *dout = douts<T>(head).row(t);
          const double sum =
              sum_of_row(shape.value_width, [&](std::int64_t j, int n, Floats before) {
                return madd(load(out + j, n), load(dout + j, n), before);
              });
          const std::int64_t at = space_row(head, t);
          const KeyRange keys = lists.are_there() ? lists.of_row(t, head) : ranges.of(t);
          const bool is_empty = keys.begin >= keys.end;
          space.minus_lse[at] = is_empty ? 0.0f : -kLog2E * lse[t * shape.num_heads + head];
          space.minus_delta[at] = static_cast<float>(-sum / double{shape.kept_scale});
          if (delta != nullptr) delta[t * shape.num_heads + head] = static_cast<float>(sum);
          if (is_empty)
            std::fill_n(HeadRows<T>(args.outputs[0], head, shape.key_width).row(t), shape.key_width,
                        T{});
        }
      }
    };
    args.launch.team->for_range(shape.num_rows,
                                row_grain(shape.heads_per_slice() * shape.value_width), run);
  }

  // The first block of keys from `index` on that a row of the block sees, kNone where there is
  // none.
  static constexpr std::int32_t kNone = INT32_MAX;
  std::int32_t next_key_block(const RowBlock& rows, std::int64_t head, std::int64_t index) const {
    std::int64_t next = std::max<std::int64_t>(index, rows.first_key_block);
    if (next > rows.last_key_block) return kNone;
    if (lists.are_there()) {
      const std::int64_t key =
          lists.next(rows, head, key_blocks[static_cast<std::size_t>(next)].first);
      if (key >= rows.end) return kNone;
      while (key_blocks[static_cast<std::size_t>(next)].first +
                 key_blocks[static_cast<std::size_t>(next)].count <=
             key)
        ++next;
    }
    return static_cast<std::int32_t>(next);
  }

  template <class T>
  HeadRows<const T> keys_of(std::int64_t kv_head) const {
    return {args.inputs[1], kv_head, shape.key_width};
  }
  template <class T>
  HeadRows<const T> values_of(std::int64_t kv_head) const {
    return {args.inputs[2], kv_head, shape.value_width};
  }
  std::int64_t num_tasks() const {
    return static_cast<std::int64_t>(key_blocks.size()) * (end_kv_head - first_kv_head);
  }
  // Twice as many kv heads as threads go together through all blocks of keys. What they read again,
  // and dq's sums, stay in the last-level cache. With fewer of them, a thread that the system holds
  // up would keep others waiting for its turns.
  struct Place {
    std::int64_t first_head, num_heads, task;  // of the heads that go together; its place there
  };
  Place place_of(std::int64_t task) const {
    const auto blocks = static_cast<std::int64_t>(key_blocks.size());
    const std::int64_t heads = 2 * args.launch.team->num_threads(),
                       first = task / (blocks * heads) * heads;
    return {first, std::min(heads, end_kv_head - first_kv_head - first), task - first * blocks};
  }
  std::int64_t kv_head_of(std::int64_t task) const {
    const Place place = place_of(task);
    return first_kv_head + place.first_head + place.task % place.num_heads;
  }
  std::int64_t key_block_of(std::int64_t task) const {
    const Place place = place_of(task);
    return place.task / place.num_heads;
  }

  // What a task starts with.
  template <class T>
  void prefetch_task(std::int64_t task) const {
    const KeyBlock& keys = key_blocks[static_cast<std::size_t>(key_block_of(task))];
    const std::int64_t kv_head = kv_head_of(task);
    prefetch(keys_of<T>(kv_head), keys.first, keys.count);
    prefetch(values_of<T>(kv_head), keys.first, keys.count);
    if (keys.first_row_block >= keys.end_row_block) return;
    const RowBlock& rows = row_blocks[static_cast<std::size_t>(keys.end_row_block - 1)];
    prefetch(queries<T>(kv_head * shape.group()), rows.first, rows.count);
    prefetch(douts<T>(kv_head * shape.group()), rows.first, rows.count);
  }

  // Packs its keys, then prefetches `ahead`, which may be taken next.
  template <class T>
  void key_block(std::int64_t task, std::int64_t ahead, const Buffers& b) const {
    const std::int64_t index = key_block_of(task), kv_head = kv_head_of(task);
    const KeyBlock& keys = key_blocks[static_cast<std::size_t>(index)];
    const GradientStep all(shape, b, 0, keys.count);
    prefetch_task<T>(task);
    all.start(keys_of<T>(kv_head), values_of<T>(kv_head), keys.first);
    const HeadRows<T> dk(args.outputs[1], kv_head, shape.key_width),
        dv(args.outputs[2], kv_head, shape.value_width);
    prefetch(dk, keys.first, keys.count);
    prefetch(dv, keys.first, keys.count);
    if (ahead < num_tasks()) prefetch_task<T>(ahead);
    for (std::int64_t head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head)
      for (std::int64_t i = row_block_before(keys.end_row_block, keys, head, index); i >= 0;) {
        const RowBlock& rows = row_blocks[static_cast<std::size_t>(i)];
        const std::int64_t ahead_of = row_block_before(i, keys, head, index);
        const std::int64_t turn =
            (head - first_head()) * static_cast<std::int64_t>(row_blocks.size()) + i;
        GradientStep step(shape, b, rows.count, keys.count);
        const Turn of_step{next_key_block(rows, head, 0) == index, static_cast<std::int32_t>(index),
                           next_key_block(rows, head, index + 1)};
        run_step<T>(step, keys, rows, head,
                    ahead_of >= 0 ? &row_blocks[static_cast<std::size_t>(ahead_of)] : nullptr);
        add_to_dq<T>(step, rows, head, of_step, space.turns[turn]);
        i = ahead_of;
      }
    all.finish(dk, dv, keys.first);
  }

  // The last block of rows before block `end` that sees keys of block `index`; -1: none.
  std::int64_t row_block_before(std::int64_t end, const KeyBlock& keys, std::int64_t head,
                                std::int64_t index) const {
    for (std::int64_t i = end; i-- > keys.first_row_block;)
      if (next_key_block(row_blocks[static_cast<std::size_t>(i)], head, index) == index) return i;
    return -1;
  }

  // Prefetches the rows that a step packs.
  template <class T>
  void prefetch_rows(const RowBlock& rows, const KeyBlock& keys, std::int64_t head) const {
    const auto prefetch_some = [&](std::int64_t first, std::int64_t count) {
      prefetch(queries<T>(head), first, count);
      prefetch(douts<T>(head), first, count);
    };
    if (!lists.are_there()) return prefetch_some(rows.first, rows.count);
    const std::int64_t end = keys.first + keys.count;
    for (std::int32_t i = rows.first_run; i < rows.end_run; ++i) {
      const ListRun& run = lists.runs[static_cast<std::size_t>(i)];
      if (lists.next(rows, run, head, keys.first) < end) prefetch_some(run.first, run.count);
    }
  }

  // The place of a step among those that add to dq of the same rows.
  struct Turn {
    bool is_first;
    std::int32_t key_block, next;  // kNone: it is the last
  };

  // `ahead`: the rows that come next; null: none.
  template <class T>
  void run_step(GradientStep& step, const KeyBlock& keys, const RowBlock& rows, std::int64_t head,
                const RowBlock* ahead) const {
    const Buffers& b = step.b;
    if (rows.last_begin <= keys.first && keys.first + keys.count <= rows.first_end) {
      std::fill_n(b.begins, step.num_rows, 0);
      std::fill_n(b.ends, step.num_rows, keys.count);
      std::fill_n(b.tiles, step.num_rows / kRows, TileRange{0, keys.count, 0, keys.count});
    } else {
      find_ranges([&](std::int64_t t) { return ranges.of(t); }, rows, keys.first, keys.count,
                  b.begins, b.ends, b.tiles);
    }
    step.seen.runs[0] = {0, static_cast<std::int32_t>(step.num_rows)};
    step.seen.num_runs = 1;
    if (lists.are_there()) {
      fill_masks(lists, rows, head, keys.first, keys.count, b.masks.words, GradientStep::kTilePart,
                 b.masks.masks, b.masks.tiles);
      TileRuns of_rows;
      of_rows.find(b.masks, step.num_rows / kRows, kRows, ~std::uint32_t{0});
      std::copy_n(of_rows.runs, of_rows.count, step.seen.runs);
      step.seen.num_runs = of_rows.count;
    }
    step.pack_rows(queries<T>(head), douts<T>(head), rows);
    const std::int64_t at = space_row(head, rows.first);
    const auto copy = [&](const float* from, float* to) {
      std::copy_n(from + at, rows.count, to);
      std::fill(to + rows.count, to + step.num_rows, 0.0f);
    };
    copy(space.minus_lse, b.minus_lse);
    copy(space.minus_delta, b.minus_delta);
    if (kept) fill_kept(b.kept, b.ends, keys, rows, head);
    step.run();
    if (ahead != nullptr) prefetch_rows<T>(*ahead, keys, head);
  }

  void fill_kept(const KeptBuffers& bits, const std::int32_t* ends, const KeyBlock& keys,
                 const RowBlock& rows, std::int64_t head) const {
    const Draws draws = kept->of_head(head);
    const std::int64_t column = keys.first - ranges.key_begin[rows.first];
    for (std::int64_t i = 0; i < rows.count; ++i)
      if (ends[i] > 0)
        KeptKeys::fill(draws, rows.first + i, column, ends[i], bits.bits + i * bits.words);
  }

  // Adds the dq of a step to the sums of its rows when its turn has come; the last one writes dq.
  template <class T>
  void add_to_dq(const GradientStep& step, const RowBlock& rows, std::int64_t head,
                 const Turn& of_step, std::int32_t& turn) const {
    const bool is_last = of_step.next == kNone;
    const std::atomic_ref<std::int32_t> taken(turn);
    while (taken.load(std::memory_order_acquire) != of_step.key_block) std::this_thread::yield();
    float* sums = space.dq + space_row(head, rows.first) * shape.padded_key_width();
    step.add_dq(rows.count, of_step.is_first, sums);
    if (is_last) {
      const HeadRows<T> dq(args.outputs[0], head, shape.key_width);
      for (std::int64_t i = 0; i < rows.count; ++i)
        step.write_dq(sums, rows.count, i, dq, rows.first + i);
    }
    taken.store(of_step.next, std::memory_order_release);
  }

  template <class T>
  void run(std::byte* of_threads) const {
    std::int32_t* turn = space.turns;
    for (std::int64_t head = first_head(); head < end_kv_head * shape.group(); ++head)
      for (const RowBlock& rows : row_blocks) *turn++ = next_key_block(rows, head, 0);
    prepare<T>();
    Pieces measure(nullptr);
    Buffers(shape, measure);
    args.launch.team->for_tasks(num_tasks(), [&](std::int64_t task, int thread) {
      Pieces of_thread(of_threads + thread * measure.used_bytes());
      key_block<T>(task, task + args.launch.team->num_threads(), Buffers(shape, of_thread));
    });
  }
};

}  // namespace

void attention_gradient(const Arguments& args) {
  const AttentionShape shape(args);
  const KeyRanges ranges = checked_key_ranges(args, shape);
  Pieces pieces(args.workspace);
  const AttentionGradientSpace space(shape, kBlocking, pieces);
  const std::span<RowBlock> row_blocks =
      cut_rows(ranges, shape.num_rows, kBlocking.gradient_rows, space.row_blocks);
  const std::span<KeyBlock> key_blocks =
      cut_keys(ranges, shape.num_rows, shape.num_keys, kBlocking.gradient_keys, row_blocks,
               space.key_blocks);
  KeyLists lists = checked_key_lists(args, shape, ranges);
  if (lists.are_there()) lists.runs = cut_runs(lists, row_blocks, space.runs);
  Gradient gradient{args,  shape,      ranges,     lists,
                    space, row_blocks, key_blocks, kept_keys(args, shape, 8)};
  std::byte* of_threads = pieces.take<std::byte>(0);
  const std::int64_t step = shape.kv_heads_per_slice();
  for (std::int64_t first = 0; first < shape.num_kv_heads; first += step) {
    gradient.first_kv_head = first;
    gradient.end_kv_head = std::min(first + step, shape.num_kv_heads);
    with_operand_type(args.inputs[0].type->dtype,
                      [&]<class T>(T*) { gradient.run<T>(of_threads); });
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
