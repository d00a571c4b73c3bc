// SPDX-License-Identifier: Apache-2.0
// Sizes of an attention call, how it is cut into blocks, and what its kernels keep in their
// workspace; the same for every instruction set.
#pragma once
#include <algorithm>
#include <span>

#include "base/rounding.h"
#include "kernels/cpu/call.h"

namespace anabatic::kernels::cpu {

// Rows of a register tile, and columns of the widest panel of any instruction set.
inline constexpr std::int64_t kTileRows = 6, kWidestPanel = 32;

// Rows of a strip of the forward: scores are stored for one strip at a time.
inline constexpr std::int64_t kStripRows = 24;

// How a call is cut. Forward: a task has (heads x rows) query rows and reads tiles of keys.
// Backward: a task has a block of keys and reads blocks of rows.
struct AttentionBlocking {
  std::int64_t rows, keys, gradient_rows, gradient_keys;

  constexpr bool is_whole() const {
    return rows % kStripRows == 0 && kStripRows % kTileRows == 0 &&
           gradient_rows % kTileRows == 0 && gradient_keys % kTileRows == 0 &&
           keys % kWidestPanel == 0 && gradient_keys % kWidestPanel == 0;
  }
};

// Blocks of the fp32 kernels. Packing a tile of keys costs about 2 % at so many rows.
inline constexpr AttentionBlocking kFloatBlocking{192, 128, 96, 96};
static_assert(kFloatBlocking.is_whole());

struct AttentionShape {
  std::int64_t num_rows, num_keys, num_heads, num_kv_heads, window, key_width, value_width;
  float scale;
  std::int64_t slices;      // groups of kv heads that a gradient takes one after the other, about
  std::int64_t block_size;  // of the lists of key blocks; 0: there are none
  std::int64_t mask_groups = 1;  // of heads, each with lists of its own
  double dropout_rate;           // of probabilities; 0: none
  std::uint64_t dropout_stream;  // of its draws
  float kept_scale;              // what kept ones are multiplied by

  AttentionShape(const TensorType& q, const TensorType& k, const TensorType& v,
                 const spec::Attributes& attributes);
  explicit AttentionShape(const Arguments& args)
      : AttentionShape(*args.inputs[0].type, *args.inputs[1].type, *args.inputs[2].type,
                       *args.attributes) {
    if (block_size > 0) mask_groups = args.inputs[args.inputs.size() - 2].type->dim(0);
  }
  explicit AttentionShape(const spec::Problem& problem)
      : AttentionShape(problem.inputs[0], problem.inputs[1], problem.inputs[2],
                       *problem.attributes) {
    if (block_size > 0) mask_groups = problem.inputs[problem.inputs.size() - 2].dim(0);
  }

  // Widths that any panel divides.
  std::int64_t padded_key_width() const { return round_up(key_width, kWidestPanel); }
  std::int64_t padded_value_width() const { return round_up(value_width, kWidestPanel); }
  bool drops() const { return dropout_rate > 0; }
  std::int64_t group() const { return num_heads / num_kv_heads; }
  std::int64_t kv_heads_per_slice() const { return ceil_div(num_kv_heads, slices); }
  std::int64_t heads_per_slice() const { return kv_heads_per_slice() * group(); }
  // Heads of one group that a forward task holds: they share its packed keys, and lists.
  std::int64_t heads_per_task() const;
  std::int64_t rows_per_task(AttentionBlocking blocking) const {
    return blocking.rows / heads_per_task() / kTileRows * kTileRows;
  }
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
};

// InvalidArgument unless every row's keys lie within the keys of the call.
KeyRanges checked_key_ranges(const Arguments& args, const AttentionShape& shape);

// Neighbouring rows with one key_begin, hence of one document: [first, first + count). They attend
// to keys within [begin, end), empty when begin >= end, and all of them to [last_begin, first_end).
struct RowBlock {
  std::int32_t first, count, begin, end, last_begin, first_end;
  std::int32_t first_key_block, last_key_block;  // that see a row of it; set by cut_keys
  std::int32_t first_run, end_run;               // of its rows by lists; set by cut_runs
};

// Keys [first, first + count); only row blocks [first_row_block, end_row_block) may see them.
struct KeyBlock {
  std::int32_t first, count, first_row_block, end_row_block;
};

// Cuts the rows into blocks of at most `most` rows, as even as whole register tiles allow.
std::int64_t max_row_blocks(std::int64_t num_rows, std::int64_t most);
std::span<RowBlock> cut_rows(const KeyRanges& ranges, std::int64_t num_rows, std::int64_t most,
                             RowBlock* blocks);

// Cuts all keys into blocks of at most `most`, and at the beginnings of documents.
std::int64_t max_key_blocks(std::int64_t num_rows, std::int64_t num_keys, std::int64_t most);
std::span<KeyBlock> cut_keys(const KeyRanges& ranges, std::int64_t num_rows, std::int64_t num_keys,
                             std::int64_t most, std::span<RowBlock> row_blocks, KeyBlock* blocks);

// Hands out pieces of a workspace, each 64-byte aligned. From null it measures.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <class T = float>
  T* take(std::int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * std::int64_t{sizeof(T)}, 64);
    return piece;
  }
  std::int64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// What a register tile of rows sees, in keys from some origin. Every row sees [full_begin,
// full_end); none sees a key outside of [begin, end).
struct TileRange {
  std::int32_t begin, end, full_begin, full_end;
};

struct ListRun;  // attention_lists.h

// Shared by the threads of a forward. `runs` are null without lists of key blocks.
struct AttentionSpace {
  RowBlock* row_blocks;
  ListRun* runs;
  AttentionSpace(const AttentionShape& shape, AttentionBlocking blocking, Pieces& pieces);
};

// The same of the backward, for the heads of a slice. `minus_lse` (base 2) and `minus_delta` are
// [heads, rows]; `dq` holds sums of blocks of rows, [heads, rows, padded]; `turns` has
// the block of keys that adds to each next, [heads, row blocks].
struct AttentionGradientSpace {
  RowBlock* row_blocks;
  ListRun* runs;
  KeyBlock* key_blocks;
  std::int32_t* turns;
  float *minus_lse, *minus_delta, *dq;
  AttentionGradientSpace(const AttentionShape& shape, AttentionBlocking blocking, Pieces& pieces);
};

}  // namespace anabatic::kernels::cpu
