// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention_shape.h"

#include "base/error.h"
#include "base/philox.h"
#include "base/rounding.h"
#include "kernels/cpu/attention/attention_lists.h"
#include "spec/dropout.h"
#include "spec/key_blocks.h"

namespace anabatic::kernels::cpu {

AttentionShape::AttentionShape(const TensorType& q, const TensorType& k, const TensorType& v,
                               const spec::Attributes& attributes)
    : num_rows(q.dim(0)),
      num_keys(k.dim(0)),
      num_heads(spec::get_int(attributes, "num_heads")),
      num_kv_heads(spec::get_int(attributes, "num_kv_heads")),
      window(spec::get_int_or(attributes, "window", 0)),
      key_width(q.dim(1) / num_heads),
      value_width(v.dim(1) / num_kv_heads),
      scale(static_cast<float>(spec::get_double(attributes, "scale"))),
      slices(spec::get_int_or(attributes, "slices", 1)),
      block_size(spec::get_int_or(attributes, spec::kBlockSize, 0)),
      dropout_rate(spec::get_double_or(attributes, spec::kDropoutRate, 0)),
      dropout_stream(drops() ? stream_of(spec::get_string(attributes, spec::kDropoutSite)) : 0),
      kept_scale(drops() ? spec::dropout_scale(dropout_rate) : 1.0f) {}

std::int64_t AttentionShape::heads_per_task() const {
  for (const std::int64_t heads : {4, 3, 2})
    if (group() % heads == 0 && num_heads / mask_groups % heads == 0) return heads;
  return 1;
}

KeyRanges checked_key_ranges(const Arguments& args, const AttentionShape& shape) {
  const KeyRanges ranges{args.inputs[3].as<const std::int32_t>(),
                         args.inputs[4].as<const std::int32_t>(), shape.window};
  for (std::int64_t t = 0; t < shape.num_rows; ++t)
    ANABATIC_REQUIRE(0 <= ranges.key_begin[t] && ranges.key_end[t] <= shape.num_keys,
                     "[attention] expected keys within [0, {}), got [{}, {})", shape.num_keys,
                     ranges.key_begin[t], ranges.key_end[t]);
  return ranges;
}

namespace {

// The size of even pieces of at most `most`, multiples of `grain`.
std::int64_t even_piece(std::int64_t size, std::int64_t most, std::int64_t grain) {
  return std::min(most, round_up(ceil_div(size, ceil_div(size, most)), grain));
}

RowBlock row_block(const KeyRanges& ranges, std::int64_t first, std::int64_t last) {
  std::int64_t begin = INT32_MAX, end = 0, last_begin = 0, first_end = INT32_MAX;
  for (std::int64_t t = first; t < last; ++t) {
    const KeyRange keys = ranges.of(t);
    last_begin = std::max(last_begin, keys.begin);
    first_end = std::min(first_end, keys.end);
    if (keys.begin >= keys.end) continue;
    begin = std::min(begin, keys.begin);
    end = std::max(end, keys.end);
  }
  return {.first = static_cast<std::int32_t>(first),
          .count = static_cast<std::int32_t>(last - first),
          .begin = static_cast<std::int32_t>(begin),
          .end = static_cast<std::int32_t>(end),
          .last_begin = static_cast<std::int32_t>(last_begin),
          .first_end = static_cast<std::int32_t>(first_end),
          .first_key_block = 0,
          .last_key_block = -1,
          .first_run = 0,
          .end_run = 0};
}

}  // namespace

std::int64_t max_row_blocks(std::int64_t num_rows, std::int64_t most) {
  return num_rows + ceil_div(num_rows, most);
}

std::span<RowBlock> cut_rows(const KeyRanges& ranges, std::int64_t num_rows, std::int64_t most,
                             RowBlock* blocks) {
  std::size_t count = 0;
  for (std::int64_t first = 0, last = 0; first < num_rows; first = last) {
    while (last < num_rows && ranges.key_begin[last] == ranges.key_begin[first]) ++last;
    const std::int64_t piece = even_piece(last - first, most, kTileRows);
    for (std::int64_t t = first; t < last; t += piece)
      blocks[count++] = row_block(ranges, t, std::min(t + piece, last));
  }
  return {blocks, count};
}

std::int64_t max_key_blocks(std::int64_t num_rows, std::int64_t num_keys, std::int64_t most) {
  return ceil_div(num_keys, most) + std::min(num_rows, num_keys) + 1;
}

std::span<KeyBlock> cut_keys(const KeyRanges& ranges, std::int64_t num_rows, std::int64_t num_keys,
                             std::int64_t most, std::span<RowBlock> row_blocks, KeyBlock* blocks) {
  std::size_t count = 0;
  std::int64_t first = 0;
  const auto cut_until = [&](std::int64_t last) {
    const std::int64_t piece = first < last ? even_piece(last - first, most, kWidestPanel) : 0;
    for (; first < last; first = std::min(first + piece, last))
      blocks[count++] = {.first = static_cast<std::int32_t>(first),
                         .count = static_cast<std::int32_t>(std::min(piece, last - first)),
                         .first_row_block = static_cast<std::int32_t>(row_blocks.size()),
                         .end_row_block = 0};
  };
  for (std::int64_t t = 0; t < num_rows; ++t)
    cut_until(std::min<std::int64_t>(ranges.key_begin[t], num_keys));
  cut_until(num_keys);

  const std::span<KeyBlock> cut(blocks, count);
  for (std::size_t i = 0; i < row_blocks.size(); ++i) {
    RowBlock& rows = row_blocks[i];
    if (rows.begin >= rows.end) continue;
    const auto after = [&](std::int32_t key) {
      return std::upper_bound(cut.begin(), cut.end(), key,
                              [](std::int32_t k, const KeyBlock& keys) { return k < keys.first; });
    };
    rows.first_key_block = static_cast<std::int32_t>(after(rows.begin) - cut.begin() - 1);
    rows.last_key_block = static_cast<std::int32_t>(after(rows.end - 1) - cut.begin() - 1);
    for (std::int32_t k = rows.first_key_block; k <= rows.last_key_block; ++k) {
      KeyBlock& keys = cut[static_cast<std::size_t>(k)];
      keys.first_row_block = std::min(keys.first_row_block, static_cast<std::int32_t>(i));
      keys.end_row_block = static_cast<std::int32_t>(i) + 1;
    }
  }
  return cut;
}

AttentionSpace::AttentionSpace(const AttentionShape& shape, AttentionBlocking blocking,
                               Pieces& pieces)
    : row_blocks(
          pieces.take<RowBlock>(max_row_blocks(shape.num_rows, shape.rows_per_task(blocking)))),
      runs(shape.block_size > 0 ? pieces.take<ListRun>(shape.num_rows) : nullptr) {}

AttentionGradientSpace::AttentionGradientSpace(const AttentionShape& shape,
                                               AttentionBlocking blocking, Pieces& pieces)
    : row_blocks(pieces.take<RowBlock>(max_row_blocks(shape.num_rows, blocking.gradient_rows))),
      runs(shape.block_size > 0 ? pieces.take<ListRun>(shape.num_rows) : nullptr),
      key_blocks(pieces.take<KeyBlock>(
          max_key_blocks(shape.num_rows, shape.num_keys, blocking.gradient_keys))),
      turns(pieces.take<std::int32_t>(shape.heads_per_slice() *
                                      max_row_blocks(shape.num_rows, blocking.gradient_rows))),
      minus_lse(pieces.take(shape.heads_per_slice() * shape.num_rows)),
      minus_delta(pieces.take(shape.heads_per_slice() * shape.num_rows)),
      dq(pieces.take(shape.heads_per_slice() * shape.num_rows * shape.padded_key_width())) {}

}  // namespace anabatic::kernels::cpu
