// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention_lists.h"

#include "base/error.h"
#include "spec/key_blocks.h"

namespace anabatic::kernels::cpu {
namespace {

// The first key of [from, end) that lies in a block of the list; `end` where there is none.
std::int64_t next_key(std::span<const std::int32_t> list, std::int64_t size, std::int64_t document,
                      std::int64_t from, std::int64_t end) {
  if (from >= end) return end;
  const auto id = std::lower_bound(list.begin(), list.end(), (from - document) / size);
  return id == list.end() ? end : std::min(std::max(document + *id * size, from), end);
}

// Sets bits [begin, end), counted from the first key of the words.
void set_bits(std::int64_t begin, std::int64_t end, std::uint64_t* words) {
  for (std::int64_t w = begin / 64; begin < end; ++w, begin = w * 64) {
    const std::int64_t last = std::min(end - w * 64, std::int64_t{64});
    words[w] |= ~std::uint64_t{0} << (begin - w * 64) & ~std::uint64_t{0} >> (64 - last);
  }
}

constexpr std::int64_t kMostWords = 8;

}  // namespace

KeyRange KeyLists::of_row(std::int64_t t, std::int64_t head) const {
  const KeyRange range = ranges.of(t);
  if (range.begin >= range.end) return range;
  return {next_key(of(head, block_of(t)), size, ranges.key_begin[t], range.begin, range.end),
          range.end};
}

std::int64_t KeyLists::next(const RowBlock& rows, std::int64_t head, std::int64_t from) const {
  std::int64_t first = rows.end;
  for (std::int32_t i = rows.first_run; i < rows.end_run; ++i)
    first = std::min(first, next(rows, runs[static_cast<std::size_t>(i)], head, from));
  return first;
}

std::int64_t KeyLists::next(const RowBlock& rows, const ListRun& run, std::int64_t head,
                            std::int64_t from) const {
  const std::int64_t key = next_key(of(head, run.block), size, ranges.key_begin[rows.first],
                                    std::max<std::int64_t>(from, run.begin), run.end);
  return key < run.end ? key : rows.end;
}

KeyLists checked_key_lists(const Arguments& args, const AttentionShape& shape,
                           const KeyRanges& ranges) {
  if (shape.block_size == 0) return {};
  const TensorView &offsets = args.inputs[args.inputs.size() - 2],
                   &ids = args.inputs[args.inputs.size() - 1];
  const KeyLists lists{.offsets = offsets.as<const std::int32_t>(),
                       .ids = ids.as<const std::int32_t>(),
                       .size = shape.block_size,
                       .blocks = offsets.type->dim(1) - 1,
                       .heads = shape.num_heads / shape.mask_groups,
                       .ranges = ranges};
  const std::int64_t most = ids.type->dim(0);
  for (std::int64_t i = 0; i < shape.mask_groups * (lists.blocks + 1); ++i) {
    const std::int64_t begin = lists.offsets[i];
    ANABATIC_REQUIRE(0 <= begin && begin <= most,
                     "[attention] expected block_offsets within [0, {}], got {}", most, begin);
    if (i % (lists.blocks + 1) == lists.blocks) continue;
    const std::int64_t end = lists.offsets[i + 1];
    ANABATIC_REQUIRE(begin <= end && end <= most,
                     "[attention] expected block_offsets that ascend within [0, {}], got {} after "
                     "{}",
                     most, end, begin);
    for (std::int64_t j = begin; j < end; ++j)
      ANABATIC_REQUIRE(lists.ids[j] > (j == begin ? -1 : lists.ids[j - 1]) &&
                           lists.ids[j] <= INT32_MAX / lists.size,
                       "[attention] expected block_ids of a list that ascend from 0, got {} at {}",
                       lists.ids[j], j);
  }
  for (std::int64_t t = 0; t < shape.num_rows; ++t)
    ANABATIC_REQUIRE(lists.block_of(t) < lists.blocks,
                     "[attention] expected rows in {} blocks of {}, got row {} in block {}",
                     lists.blocks, lists.size, t, lists.block_of(t));
  return lists;
}

std::span<const ListRun> cut_runs(const KeyLists& lists, std::span<RowBlock> row_blocks,
                                  ListRun* runs) {
  std::int32_t count = 0;
  for (RowBlock& rows : row_blocks) {
    rows.first_run = count;
    for (std::int64_t t = rows.first; t < rows.first + rows.count; ++t) {
      const auto block = static_cast<std::int32_t>(lists.block_of(t));
      const KeyRange range = lists.ranges.of(t);
      if (count == rows.first_run || runs[count - 1].block != block)
        runs[count++] = {static_cast<std::int32_t>(t), 0, block, INT32_MAX, 0, 0, INT32_MAX};
      ListRun& run = runs[count - 1];
      ++run.count;
      run.last_begin = std::max(run.last_begin, static_cast<std::int32_t>(range.begin));
      run.first_end = std::min(run.first_end, static_cast<std::int32_t>(range.end));
      if (range.begin >= range.end) continue;
      run.begin = std::min(run.begin, static_cast<std::int32_t>(range.begin));
      run.end = std::max(run.end, static_cast<std::int32_t>(range.end));
    }
    rows.end_run = count;
  }
  return {runs, static_cast<std::size_t>(count)};
}

KeyRange ListedRows::of(std::int64_t t) {
  const KeyRange range = lists_.ranges.of(t);
  for (; t >= end_; end_ = lists_.runs[static_cast<std::size_t>(run_)].first +
                           lists_.runs[static_cast<std::size_t>(run_)].count)
    ++run_, key_ = -1;
  if (range.begin >= range.end) return range;
  const ListRun& run = lists_.runs[static_cast<std::size_t>(run_)];
  if (key_ < range.begin)
    key_ = next_key(lists_.of(head_, run.block), lists_.size, lists_.ranges.key_begin[t],
                    range.begin, INT32_MAX);
  return {std::min(key_, range.end), range.end};
}

namespace {

// One bit for each register tile of keys: where a word of the row, or of every row, has one of its
// keys, or all.
std::uint32_t tile_bits(const std::uint64_t* words, std::int64_t num_words, std::int64_t tile_keys,
                        bool all) {
  const std::uint64_t keys = ~std::uint64_t{0} >> (64 - tile_keys);
  std::uint32_t bits = 0;
  if (tile_keys == 64) {
    for (std::int64_t w = num_words; w-- > 0;)
      bits = bits << 1 | static_cast<std::uint32_t>(all ? words[w] == keys : words[w] != 0);
    return bits;
  }
  for (std::int64_t i = num_words * 64 / tile_keys; i-- > 0;) {
    const std::uint64_t part = words[i * tile_keys / 64] >> i * tile_keys % 64 & keys;
    bits = bits << 1 | (all ? part == keys : part != 0);
  }
  return bits;
}

TileMasks tile_of(const std::uint64_t* rows, std::int64_t words, std::int64_t tile_keys) {
  std::uint64_t any[kMostWords] = {}, every[kMostWords];
  std::fill_n(every, kMostWords, ~std::uint64_t{0});
  for (std::int64_t r = 0; r < kTileRows; ++r)
    for (std::int64_t w = 0; w < words; ++w) {
      any[w] |= rows[r * words + w];
      every[w] &= rows[r * words + w];
    }
  return {tile_bits(any, words, tile_keys, false), tile_bits(every, words, tile_keys, true)};
}

}  // namespace

void fill_masks(const KeyLists& lists, const RowBlock& rows, std::int64_t head, std::int64_t first,
                std::int64_t count, std::int64_t words, std::int64_t tile_keys,
                std::uint64_t* masks, TileMasks* tiles) {
  const std::int64_t document = lists.ranges.key_begin[rows.first];
  for (std::int32_t i = rows.first_run; i < rows.end_run; ++i) {
    const ListRun& run = lists.runs[static_cast<std::size_t>(i)];
    const std::span<const std::int32_t> list = lists.of(head, run.block);
    std::uint64_t listed[kMostWords] = {};
    const std::int64_t begin = std::max<std::int64_t>(first, run.begin),
                       end = std::min<std::int64_t>(first + count, run.end);
    if (begin < end)
      for (auto id = std::lower_bound(list.begin(), list.end(), (begin - document) / lists.size);
           id != list.end() && document + *id * lists.size < end; ++id) {
        const std::int64_t key = document + *id * lists.size;
        set_bits(std::max(key, begin) - first, std::min(key + lists.size, end) - first, listed);
      }
    const TileMasks of_run{tile_bits(listed, words, tile_keys, false),
                           tile_bits(listed, words, tile_keys, true)};
    // Where every row sees all keys of its range, or none has one, all rows are alike.
    const bool is_whole =
        of_run.any == 0 || (run.last_begin <= first && first + count <= run.first_end);
    const std::int64_t last = run.first - rows.first + run.count;
    for (std::int64_t r = run.first - rows.first; r < last;) {
      std::uint64_t* row = masks + r * words;
      if (is_whole && r % kTileRows == 0 && r + kTileRows <= last) {
        tiles[r / kTileRows] = of_run;
        for (std::int64_t j = 0; j < kTileRows && of_run.any != of_run.full; ++j)
          std::copy_n(listed, words, row + j * words);
        r += kTileRows;
        continue;
      }
      if (is_whole) {
        std::copy_n(listed, words, row);
      } else {
        const KeyRange range = lists.ranges.of(rows.first + r);
        std::uint64_t seen[kMostWords] = {};
        set_bits(std::clamp<std::int64_t>(range.begin - first, 0, count),
                 std::clamp<std::int64_t>(range.end - first, 0, count), seen);
        for (std::int64_t w = 0; w < words; ++w) row[w] = listed[w] & seen[w];
      }
      if (++r % kTileRows == 0)
        tiles[r / kTileRows - 1] = tile_of(masks + (r - kTileRows) * words, words, tile_keys);
    }
  }
  const std::int64_t filled = rows.count / kTileRows * kTileRows;
  if (filled == rows.count) return;
  for (std::int64_t r = rows.count; r < filled + kTileRows; ++r)
    std::copy_n(masks + (rows.count - 1) * words, words, masks + r * words);
  tiles[filled / kTileRows] = tile_of(masks + filled * words, words, tile_keys);
}

}  // namespace anabatic::kernels::cpu
