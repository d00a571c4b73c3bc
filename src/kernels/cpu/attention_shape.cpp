// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_shape.h"

#include "base/error.h"
#include "kernels/cpu/vector_rows.h"

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
      scale(static_cast<float>(spec::get_double(attributes, "scale"))) {}

KeyRanges checked_key_ranges(const Arguments& args, const AttentionShape& shape) {
  const KeyRanges ranges{args.inputs[3].as<const std::int32_t>(),
                         args.inputs[4].as<const std::int32_t>(), shape.window};
  for (std::int64_t t = 0; t < shape.num_rows; ++t)
    ANABATIC_REQUIRE(0 <= ranges.key_begin[t] && ranges.key_end[t] <= shape.num_keys,
                     "[attention] expected keys within [0, {}), got [{}, {})", shape.num_keys,
                     ranges.key_begin[t], ranges.key_end[t]);
  return ranges;
}

AttentionBuffers::AttentionBuffers(const AttentionShape& shape, Pieces& pieces)
    : rows(pieces.take(kBlockRows * shape.padded_key_width())),
      scores(pieces.take(kBlockRows * kTileRows)),
      keys(pieces.take(kTileRows * shape.padded_key_width())),
      keys_across(pieces.take(kTileRows * shape.padded_key_width())),
      values(pieces.take(kTileRows * shape.padded_value_width())),
      sums(pieces.take(kBlockRows * shape.padded_value_width())),
      largest(pieces.take(kBlockRows)),
      totals(pieces.take(kBlockRows)) {}

AttentionGradientBuffers::AttentionGradientBuffers(const AttentionShape& shape, Pieces& pieces)
    : block_keys(pieces.take(kBlockRows * shape.padded_key_width())),
      block_values(pieces.take(kBlockRows * shape.padded_value_width())),
      tile_keys(pieces.take(kTileRows * shape.padded_key_width())),
      tile_values(pieces.take(kTileRows * shape.padded_value_width())),
      keys_across(pieces.take(kTileRows * shape.padded_key_width())),
      values_across(pieces.take(kTileRows * shape.padded_value_width())),
      scores(pieces.take(kBlockRows * kTileRows)),
      gradients(pieces.take(kBlockRows * kTileRows)),
      key_sums(pieces.take(kBlockRows * shape.padded_key_width())),
      value_sums(pieces.take(kBlockRows * shape.padded_value_width())),
      lse(pieces.take(kTileRows)),
      delta(pieces.take(kTileRows)) {}

// Buffers of each thread.
std::int64_t attention_workspace_bytes(const spec::Problem& problem) {
  const AttentionShape shape(problem.inputs[0], problem.inputs[1], problem.inputs[2],
                             *problem.attributes);
  Pieces pieces(nullptr);
  AttentionBuffers(shape, pieces);
  return problem.device->num_threads * pieces.used() * std::int64_t{sizeof(float)};
}

// lse and delta as [heads, rows], then the buffers of each thread.
std::int64_t attention_gradient_workspace_bytes(const spec::Problem& problem) {
  const AttentionShape shape(problem.inputs[0], problem.inputs[1], problem.inputs[2],
                             *problem.attributes);
  Pieces pieces(nullptr);
  AttentionGradientBuffers(shape, pieces);
  return (2 * round_up(shape.num_heads * shape.num_rows, 16) +
          problem.device->num_threads * pieces.used()) *
         std::int64_t{sizeof(float)};
}

}  // namespace anabatic::kernels::cpu
