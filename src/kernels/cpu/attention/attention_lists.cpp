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
  const std::int64_t document = ranges.key_begin[rows.first];
  for (std::int32_t i = rows.first_run; i < rows.end_run; ++i) {
    const ListRun& run = runs[static_cast<std::size_t>(i)];
    const std::int64_t key = next_key(of(head, run.block), size, document,
                                      std::max<std::int64_t>(from, run.begin), run.end);
    if (key < run.end) first = std::min(first, key);
  }
  return first;
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
        runs[count++] = {static_cast<std::int32_t>(t), 0, block, INT32_MAX, 0};
      ListRun& run = runs[count - 1];
      ++run.count;
      if (range.begin >= range.end) continue;
      run.begin = std::min(run.begin, static_cast<std::int32_t>(range.begin));
      run.end = std::max(run.end, static_cast<std::int32_t>(range.end));
    }
    rows.end_run = count;
  }
  return {runs, static_cast<std::size_t>(count)};
}

void fill_masks(const KeyLists& lists, const RowBlock& rows, std::int64_t head, std::int64_t first,
                std::int64_t count, std::int64_t words, std::int64_t tile_keys,
                std::uint64_t* masks, TileMasks* tiles) {
  const std::int64_t document = lists.ranges.key_begin[rows.first];
  std::uint64_t* row = masks;
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
    for (std::int64_t t = run.first; t < run.first + run.count; ++t, row += words) {
      const KeyRange range = lists.ranges.of(t);
      std::uint64_t seen[kMostWords] = {};
      set_bits(std::clamp<std::int64_t>(range.begin - first, 0, count),
               std::clamp<std::int64_t>(range.end - first, 0, count), seen);
      for (std::int64_t w = 0; w < words; ++w) row[w] = listed[w] & seen[w];
    }
  }
  for (std::int64_t t = rows.count; t < round_up(rows.count, kTileRows); ++t, row += words)
    std::copy_n(row - words, words, row);

  const std::uint64_t all = ~std::uint64_t{0} >> (64 - tile_keys);
  for (std::int64_t tile = 0; tile < ceil_div(rows.count, kTileRows); ++tile) {
    TileMasks& result = tiles[tile] = {0, 0};
    for (std::int64_t w = 0; w < words; ++w) {
      std::uint64_t any = 0, every = ~std::uint64_t{0};
      for (std::int64_t r = tile * kTileRows; r < (tile + 1) * kTileRows; ++r) {
        any |= masks[r * words + w];
        every &= masks[r * words + w];
      }
      for (std::int64_t k = 0; k < 64; k += tile_keys) {
        const auto bit = std::uint32_t{1} << (w * 64 + k) / tile_keys;
        if ((any >> k & all) != 0) result.any |= bit;
        if ((every >> k & all) == all) result.full |= bit;
      }
    }
  }
}

}  // namespace anabatic::kernels::cpu
