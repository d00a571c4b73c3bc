// SPDX-License-Identifier: Apache-2.0
// The blocks of keys that rows attend to (spec/key_blocks.h), for any form of attention's operands.
//
// Lists only take keys from what a row's range has. A kernel leaves out what no row of a register
// tile sees, and masks the rest. It sums over what it leaves out as over zeros, so bits depend on
// what a row sees alone: lists of all blocks give the bits of none.
#pragma once
#include <span>

#include "kernels/cpu/attention/attention_shape.h"

namespace anabatic::kernels::cpu {

// Neighbouring rows of a row block that have one list: their block of the document, -1 for rows
// without a key. They attend to keys within [begin, end), and all of them to what their list has of
// [last_begin, first_end), which may be empty.
struct ListRun {
  std::int32_t first, count, block, begin, end, last_begin, first_end;
};

struct KeyLists {
  const std::int32_t *offsets = nullptr, *ids = nullptr;
  std::int64_t size = 0;    // of a block; 0: there are no lists
  std::int64_t blocks = 0;  // of rows, in each group
  std::int64_t heads = 1;   // of a group
  KeyRanges ranges{};
  std::span<const ListRun> runs{};  // by row blocks

  [[gnu::always_inline]] bool are_there() const { return size > 0; }
  std::span<const std::int32_t> of(std::int64_t head, std::int64_t block) const {
    if (block < 0) return {};
    const std::int32_t* at = offsets + head / heads * (blocks + 1) + block;
    return {ids + at[0], ids + at[1]};
  }
  // The block of row t; -1 where it has no key.
  std::int64_t block_of(std::int64_t t) const {
    const std::int64_t place = std::int64_t{ranges.key_end[t]} - 1 - ranges.key_begin[t];
    return place < 0 ? -1 : place / size;
  }
  // What row t sees: from the first key that its list has on. Empty where it has none.
  KeyRange of_row(std::int64_t t, std::int64_t head) const;
  // The first key from `from` on that some row of the block, or of its run, may see; rows.end where
  // there is none.
  std::int64_t next(const RowBlock& rows, std::int64_t head, std::int64_t from) const;
  std::int64_t next(const RowBlock& rows, const ListRun& run, std::int64_t head,
                    std::int64_t from) const;
};

// What the rows of a block see in a head, as of_row: asked for in ascending order.
class ListedRows {
 public:
  ListedRows(const KeyLists& lists, const RowBlock& rows, std::int64_t head)
      : lists_(lists), head_(head), run_(rows.first_run - 1) {}
  KeyRange of(std::int64_t t);

 private:
  const KeyLists& lists_;
  std::int64_t head_;
  std::int32_t run_;
  std::int64_t end_ = -1, key_ = 0;  // row after the run; the first key that its list has
};

// The lists of a call, its last two inputs; none where it has none. InvalidArgument unless they are
// sound and every row has one.
KeyLists checked_key_lists(const Arguments& args, const AttentionShape& shape,
                           const KeyRanges& ranges);

// At most num_rows. Sets first_run and end_run of the blocks.
std::span<const ListRun> cut_runs(const KeyLists& lists, std::span<RowBlock> row_blocks,
                                  ListRun* runs);

// Words of 64 keys.
constexpr std::int64_t num_mask_words(std::int64_t keys) { return ceil_div(keys, 64); }

// Bits of keys: of a tile of rows against a tile of keys, one bit for each of its register tiles of
// keys. `any`: some row sees a key; `full`: every row sees all keys.
struct TileMasks {
  std::uint32_t any, full;
};

// Bit k of word w: the row sees key first + 64 w + k, below first + count. Rows that fill the last
// register tile of rows see what the last row sees. `tile_keys`: of a register tile of keys, which
// divides 64. Words are undefined where all that rows of a tile see is full.
void fill_masks(const KeyLists& lists, const RowBlock& rows, std::int64_t head, std::int64_t first,
                std::int64_t count, std::int64_t words, std::int64_t tile_keys,
                std::uint64_t* masks, TileMasks* tiles);

// A part of a product's depth.
struct DepthRun {
  std::int32_t begin, end;
};
inline constexpr int kMostRuns = 16;  // of at most 32 bits

// Runs of set bits, each of which stands for `unit` steps of the depth, cut to [begin, end).
[[gnu::always_inline]] inline int to_runs(std::uint32_t bits, std::int64_t unit, std::int64_t begin,
                                          std::int64_t end, DepthRun* runs) {
  int count = 0;
  while (bits != 0) {
    const int first = __builtin_ctz(bits);
    const std::uint32_t rest = ~(bits >> first);
    const int length = rest == 0 ? 32 : __builtin_ctz(rest);
    const std::int64_t from = std::max(first * unit, begin),
                       to = std::min((first + length) * unit, end);
    if (from < to) runs[count++] = {static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)};
    if (first + length >= 32) break;
    bits &= ~std::uint32_t{0} << (first + length);
  }
  return count;
}

}  // namespace anabatic::kernels::cpu
