// SPDX-License-Identifier: Apache-2.0
// Sizes of an attention call and what its kernels keep in their workspace; the same for every
// instruction set.
#pragma once
#include <algorithm>

#include "kernels/cpu/call.h"

namespace anabatic::kernels::cpu {

// Rows of the block that a task holds, and rows of the tiles that pass by it.
inline constexpr std::int64_t kBlockRows = 96, kTileRows = 64;

struct AttentionShape {
  std::int64_t num_rows, num_keys, num_heads, num_kv_heads, window, key_width, value_width;
  float scale;

  AttentionShape(const TensorType& q, const TensorType& k, const TensorType& v,
                 const spec::Attributes& attributes);
  explicit AttentionShape(const Arguments& args)
      : AttentionShape(*args.inputs[0].type, *args.inputs[1].type, *args.inputs[2].type,
                       *args.attributes) {}

  // Widths of rows in workspace, where columns beyond the head are zero.
  std::int64_t padded_key_width() const { return round_up(key_width, 16); }
  std::int64_t padded_value_width() const { return round_up(value_width, 16); }
  std::int64_t group() const { return num_heads / num_kv_heads; }
  std::int64_t num_row_blocks() const { return ceil_div(num_rows, kBlockRows); }
  std::int64_t num_key_blocks() const { return ceil_div(num_keys, kBlockRows); }
};

struct KeyRange {
  std::int64_t begin, end;  // empty when begin >= end
};

// The keys that each row attends to.
struct KeyRanges {
  const std::int32_t *key_begin, *key_end;
  std::int64_t window;

  KeyRange of(std::int64_t t) const {
    const std::int64_t begin = key_begin[t], end = key_end[t];
    return {window > 0 ? std::max(begin, end - window) : begin, end};
  }
  // From the first to the last key of rows [first, last).
  KeyRange span(std::int64_t first, std::int64_t last) const {
    KeyRange span{INT64_MAX, 0};
    for (std::int64_t t = first; t < last; ++t) {
      const KeyRange keys = of(t);
      if (keys.begin >= keys.end) continue;
      span = {std::min(span.begin, keys.begin), std::max(span.end, keys.end)};
    }
    return span;
  }
};

// InvalidArgument unless every row's keys lie within the keys of the call.
KeyRanges checked_key_ranges(const Arguments& args, const AttentionShape& shape);

// Hands out pieces of a workspace in floats, each 64-byte aligned. From null it measures.
class Pieces {
 public:
  explicit Pieces(float* base) : base_(base) {}
  float* take(std::int64_t count) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count, 16);
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  float* base_;
  std::int64_t used_ = 0;
};

// What one thread holds in the forward.
struct AttentionBuffers {
  float *rows, *scores, *keys, *keys_across, *values, *sums, *largest, *totals;
  AttentionBuffers(const AttentionShape& shape, Pieces& pieces);
};

// What one thread holds in the backward: rows of a block, rows and columns of the tile, gradients.
struct AttentionGradientBuffers {
  float *block_keys, *block_values;  // as wide as q and as dout
  float *tile_keys, *tile_values, *keys_across, *values_across;
  float *scores, *gradients;
  float *key_sums, *value_sums;
  float *lse, *delta;
  AttentionGradientBuffers(const AttentionShape& shape, Pieces& pieces);
};

}  // namespace anabatic::kernels::cpu
