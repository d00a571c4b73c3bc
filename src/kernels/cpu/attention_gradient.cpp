// SPDX-License-Identifier: Apache-2.0
// With p = exp(score − lse), dp = dout·v and delta = dout·out: ds = p · (dp − delta); then
// dv += p·dout, dq += scale·ds·k, dk += scale·ds·q (Dao et al., FlashAttention, appendix B.4).
// Blocks of rows give dq, blocks of keys give dk and dv, so that every row has one writer; each
// computes p again.
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// One head of a tensor: row t lies at data + t · stride.
template <class T>
struct HeadRows {
  const T* data;
  std::int64_t stride, width;

  HeadRows(const TensorView& view, std::int64_t head, std::int64_t head_width)
      : data(view.as<const T>() + head * head_width), stride(columns(view)), width(head_width) {}
  void read(std::int64_t first, std::int64_t count, float factor, float* to) const {
    read_rows(data + first * stride, stride, count, width, factor, to);
  }
};

struct Gradient {
  const Arguments& args;
  AttentionShape shape;
  KeyRanges ranges;
  float *lse, *delta;  // [heads, rows]

  // lse and delta by heads.
  template <class T>
  void prepare() const {
    const std::int64_t width = shape.value_width;
    const float* given = args.inputs[6].as<const float>();
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t head = 0; head < shape.num_heads; ++head) {
          const std::int64_t first = (t * shape.num_heads + head) * width;
          const T *out = args.inputs[5].as<const T>() + first,
                  *dout = args.inputs[7].as<const T>() + first;
          Floats sum{};
          for_lanes(0, width, [&](std::int64_t j, int n) {
            sum = madd(load(out + j, n), load(dout + j, n), sum);
          });
          lse[head * shape.num_rows + t] = given[t * shape.num_heads + head];
          delta[head * shape.num_rows + t] = sum_lanes(sum);
        }
    };
    args.team->for_range(shape.num_rows, row_grain(shape.num_heads * width), run);
  }

  // scores[columns] := ds of row t; 0 for keys outside of [begin, end).
  void row_gradients(std::int64_t head, std::int64_t t, std::int64_t begin, std::int64_t end,
                     std::int64_t columns, float* scores, const float* dp) const {
    const float row_lse = lse[head * shape.num_rows + t],
                row_delta = delta[head * shape.num_rows + t];
    end = std::max(begin, end);
    for (std::int64_t j = 0; j < columns; j += kLanes)
      store(scores + j, exp(load(scores + j) - row_lse) * (load(dp + j) - row_delta));
    std::fill(scores, scores + begin, 0.0f);
    std::fill(scores + end, scores + columns, 0.0f);
  }

  template <class T>
  void row_block(std::int64_t head, std::int64_t first, const AttentionGradientBuffers& b) const {
    const std::int64_t num_rows = std::min(kBlockRows, shape.num_rows - first),
                       kv_head = head / shape.group(), key_width = shape.padded_key_width();
    const HeadRows<T> q(args.inputs[0], head, shape.key_width),
        k(args.inputs[1], kv_head, shape.key_width), v(args.inputs[2], kv_head, shape.value_width),
        dout(args.inputs[7], head, shape.value_width);
    q.read(first, num_rows, shape.scale, b.block_keys);
    dout.read(first, num_rows, 1.0f, b.block_values);
    std::fill(b.key_sums, b.key_sums + kBlockRows * key_width, 0.0f);
    const KeyRange span = ranges.span(first, first + num_rows);
    for (std::int64_t key = span.begin; key < span.end; key += kTileRows) {
      const std::int64_t count = std::min(kTileRows, span.end - key),
                         padded = round_up(count, kLanes);
      k.read(key, count, 1.0f, b.tile_keys);
      v.read(key, count, 1.0f, b.tile_values);
      transpose(b.tile_keys, count, key_width, b.keys_across);
      transpose(b.tile_values, count, shape.padded_value_width(), b.values_across);
      multiply_across(b.block_keys, num_rows, shape.key_width, b.keys_across, padded, b.scores);
      multiply_across(b.block_values, num_rows, shape.value_width, b.values_across, padded,
                      b.gradients);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        const KeyRange keys = ranges.of(first + i);
        row_gradients(head, first + i, std::clamp<std::int64_t>(keys.begin - key, 0, count),
                      std::clamp<std::int64_t>(keys.end - key, 0, count), padded,
                      b.scores + i * kTileRows, b.gradients + i * kTileRows);
      }
      add_weighted(b.scores, num_rows, count, b.tile_keys, key_width, b.key_sums);
    }
    const std::int64_t stride = columns(args.outputs[0]);
    write_rows(b.key_sums, num_rows, shape.key_width, shape.scale,
               args.outputs[0].as<T>() + first * stride + head * shape.key_width, stride);
  }

  // Of one key and the rows [t, t + count): scores := p, gradients := ds. Rows whose range leaves
  // the key out have 0 there.
  void key_gradients(std::int64_t key, std::int64_t t, std::int64_t count, bool is_partial,
                     const AttentionGradientBuffers& b, float* scores, float* gradients) const {
    for_lanes(0, count, [&](std::int64_t j, int) {
      const Floats p = exp(load(scores + j) - load(b.lse + j));
      store(scores + j, p);
      store(gradients + j, p * (load(gradients + j) - load(b.delta + j)));
    });
    for (std::int64_t j = 0; is_partial && j < count; ++j) {
      const KeyRange keys = ranges.of(t + j);
      if (keys.begin <= key && key < keys.end) continue;
      scores[j] = 0.0f;
      gradients[j] = 0.0f;
    }
  }

  // Whether a row of [t, t + count) leaves out a key of [first, last).
  bool is_partial(std::int64_t t, std::int64_t count, std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = t; i < t + count; ++i)
      if (const KeyRange keys = ranges.of(i); keys.begin > first || keys.end < last) return true;
    return false;
  }

  template <class T>
  void key_block(std::int64_t kv_head, std::int64_t first,
                 const AttentionGradientBuffers& b) const {
    const std::int64_t num_keys = std::min(kBlockRows, shape.num_keys - first),
                       key_width = shape.padded_key_width(),
                       value_width = shape.padded_value_width();
    const HeadRows<T> k(args.inputs[1], kv_head, shape.key_width),
        v(args.inputs[2], kv_head, shape.value_width);
    k.read(first, num_keys, 1.0f, b.block_keys);
    v.read(first, num_keys, 1.0f, b.block_values);
    std::fill(b.key_sums, b.key_sums + kBlockRows * key_width, 0.0f);
    std::fill(b.value_sums, b.value_sums + kBlockRows * value_width, 0.0f);
    for (std::int64_t head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head)
      for (std::int64_t t = 0; t < shape.num_rows; t += kTileRows) {
        const std::int64_t count = std::min(kTileRows, shape.num_rows - t);
        const KeyRange span = ranges.span(t, t + count);
        if (span.end > first && span.begin < first + num_keys)
          key_block_step<T>(head, first, num_keys, t, count, b);
      }
    const std::int64_t k_stride = columns(args.outputs[1]), v_stride = columns(args.outputs[2]);
    write_rows(b.key_sums, num_keys, shape.key_width, 1.0f,
               args.outputs[1].as<T>() + first * k_stride + kv_head * shape.key_width, k_stride);
    write_rows(b.value_sums, num_keys, shape.value_width, 1.0f,
               args.outputs[2].as<T>() + first * v_stride + kv_head * shape.value_width, v_stride);
  }

  template <class T>
  void key_block_step(std::int64_t head, std::int64_t first, std::int64_t num_keys, std::int64_t t,
                      std::int64_t count, const AttentionGradientBuffers& b) const {
    const std::int64_t padded = round_up(count, kLanes), key_width = shape.padded_key_width(),
                       value_width = shape.padded_value_width();
    const HeadRows<T> q(args.inputs[0], head, shape.key_width),
        dout(args.inputs[7], head, shape.value_width);
    q.read(t, count, shape.scale, b.tile_keys);
    dout.read(t, count, 1.0f, b.tile_values);
    transpose(b.tile_keys, count, key_width, b.keys_across);
    transpose(b.tile_values, count, value_width, b.values_across);
    for_lanes(0, count, [&](std::int64_t j, int n) {
      store(b.lse + j, load(lse + head * shape.num_rows + t + j, n));
      store(b.delta + j, load(delta + head * shape.num_rows + t + j, n));
    });
    multiply_across(b.block_keys, num_keys, shape.key_width, b.keys_across, padded, b.scores);
    multiply_across(b.block_values, num_keys, shape.value_width, b.values_across, padded,
                    b.gradients);
    const bool partial = is_partial(t, count, first, first + num_keys);
    for (std::int64_t i = 0; i < num_keys; ++i)
      key_gradients(first + i, t, count, partial, b, b.scores + i * kTileRows,
                    b.gradients + i * kTileRows);
    add_weighted(b.scores, num_keys, count, b.tile_values, value_width, b.value_sums);
    add_weighted(b.gradients, num_keys, count, b.tile_keys, key_width, b.key_sums);
  }

  // Blocks of keys go first, for they cost most; the first keys have the most rows, the last rows
  // the most keys.
  template <class T>
  void run(float* buffers) const {
    const std::int64_t key_tasks = shape.num_key_blocks() * shape.num_kv_heads,
                       row_blocks = shape.num_row_blocks();
    Pieces measure(nullptr);
    const AttentionGradientBuffers measured(shape, measure);
    args.team->for_tasks(
        key_tasks + row_blocks * shape.num_heads, [&](std::int64_t task, int thread) {
          Pieces pieces(buffers + thread * measure.used());
          const AttentionGradientBuffers of_thread(shape, pieces);
          if (task < key_tasks)
            return key_block<T>(task % shape.num_kv_heads, task / shape.num_kv_heads * kBlockRows,
                                of_thread);
          task -= key_tasks;
          row_block<T>(task % shape.num_heads,
                       (row_blocks - 1 - task / shape.num_heads) * kBlockRows, of_thread);
        });
  }
};

}  // namespace

void attention_gradient(const Arguments& args) {
  const AttentionShape shape(args);
  Pieces pieces(reinterpret_cast<float*>(args.workspace));
  float* lse = pieces.take(shape.num_heads * shape.num_rows);
  float* delta = pieces.take(shape.num_heads * shape.num_rows);
  float* buffers = pieces.take(0);
  const Gradient gradient{args, shape, checked_key_ranges(args, shape), lse, delta};
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    gradient.prepare<T>();
    gradient.run<T>(buffers);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
