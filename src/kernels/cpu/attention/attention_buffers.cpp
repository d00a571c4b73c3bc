// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention_buffers.h"

#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu {

AttentionBuffers::AttentionBuffers(const AttentionShape& shape, Pieces& pieces)
    : queries(pieces.take(kBlocking.rows * shape.padded_key_width())),
      keys(pieces.take(kBlocking.keys * shape.padded_key_width())),
      values(pieces.take(kBlocking.keys * shape.padded_value_width())),
      scores(pieces.take(kStripRows * kScoreStride)),
      sums(pieces.take(kBlocking.rows * shape.padded_value_width())),
      minus_largest(pieces.take(kBlocking.rows)),
      tile_totals(pieces.take(kStripRows * kWidestPanel / 2)),
      totals(pieces.take<double>(kBlocking.rows)),
      begins(pieces.take<std::int32_t>(kBlocking.rows)),
      ends(pieces.take<std::int32_t>(kBlocking.rows)),
      tiles(pieces.take<TileRange>(kBlocking.rows / kTileRows)),
      masks(shape, kBlocking.rows, kBlocking.keys, pieces),
      kept(shape, kStripRows, kBlocking.keys, pieces) {}

AttentionGradientBuffers::AttentionGradientBuffers(const AttentionShape& shape, Pieces& pieces)
    : keys(pieces.take(kBlocking.gradient_keys * shape.padded_key_width())),
      keys_across(pieces.take(kBlocking.gradient_keys * shape.padded_key_width())),
      values_across(pieces.take(kBlocking.gradient_keys * shape.padded_value_width())),
      queries(pieces.take(kBlocking.gradient_rows * shape.padded_key_width())),
      douts(pieces.take(kBlocking.gradient_rows * shape.padded_value_width())),
      minus_lse(pieces.take(kBlocking.gradient_rows)),
      minus_delta(pieces.take(kBlocking.gradient_rows)),
      weights(pieces.take(kBlocking.gradient_rows * kGradientStride)),
      gradients(pieces.take(kBlocking.gradient_rows * kGradientStride)),
      dq(pieces.take(kBlocking.gradient_rows * shape.padded_key_width())),
      dk(pieces.take(kBlocking.gradient_keys * shape.padded_key_width())),
      dv(pieces.take(kBlocking.gradient_keys * shape.padded_value_width())),
      begins(pieces.take<std::int32_t>(kBlocking.gradient_rows)),
      ends(pieces.take<std::int32_t>(kBlocking.gradient_rows)),
      tiles(pieces.take<TileRange>(kBlocking.gradient_rows / kTileRows)),
      masks(shape, kBlocking.gradient_rows, kBlocking.gradient_keys, pieces),
      kept(shape, kBlocking.gradient_rows, kBlocking.gradient_keys, pieces) {}

AttentionPairBuffers::AttentionPairBuffers(const AttentionShape& shape, Pieces& pieces)
    : queries(pieces.take<Word>(kBlocking.rows * shape.padded_key_width() / 2)),
      keys(pieces.take<Word>(kBlocking.keys * shape.padded_key_width() / 2)),
      values(pieces.take<Word>(kBlocking.keys * shape.padded_value_width() / 2)),
      weights(pieces.take<Word>(kStripRows * kPairStride)),
      scores(pieces.take(kTileRows * kPairScores)),
      sums(pieces.take(kBlocking.rows * shape.padded_value_width())),
      minus_largest(pieces.take(kBlocking.rows)),
      tile_totals(pieces.take(kStripRows * kPairPanel)),
      totals(pieces.take<double>(kBlocking.rows)),
      begins(pieces.take<std::int32_t>(kBlocking.rows)),
      ends(pieces.take<std::int32_t>(kBlocking.rows)),
      tiles(pieces.take<TileRange>(kBlocking.rows / kTileRows)),
      masks(shape, kBlocking.rows, kBlocking.keys, pieces),
      kept(shape, kStripRows, kBlocking.keys, pieces) {}

AttentionGradientPairBuffers::AttentionGradientPairBuffers(const AttentionShape& shape,
                                                           Pieces& pieces)
    : key_panels(pieces.take<Word>(kBlocking.gradient_keys * shape.padded_key_width() / 2)),
      keys_across(pieces.take<Word>(kBlocking.gradient_keys * shape.padded_key_width() / 2)),
      values_across(pieces.take<Word>(kBlocking.gradient_keys * shape.padded_value_width() / 2)),
      query_rows(pieces.take<Word>(kBlocking.gradient_rows * shape.padded_key_width() / 2)),
      query_panels(pieces.take<Word>(kBlocking.gradient_rows * shape.padded_key_width() / 2)),
      dout_rows(pieces.take<Word>(kBlocking.gradient_rows * shape.padded_value_width() / 2)),
      dout_panels(pieces.take<Word>(kBlocking.gradient_rows * shape.padded_value_width() / 2)),
      weights_across(pieces.take<Word>(kBlocking.gradient_rows / 2 * kPairAcrossStride)),
      gradients_across(pieces.take<Word>(kBlocking.gradient_rows / 2 * kPairAcrossStride)),
      gradient_rows(pieces.take<Word>(kBlocking.gradient_rows * kPairGradientStride)),
      minus_lse(pieces.take(kBlocking.gradient_rows)),
      minus_delta(pieces.take(kBlocking.gradient_rows)),
      dk(pieces.take(kBlocking.gradient_keys * shape.padded_key_width())),
      dv(pieces.take(kBlocking.gradient_keys * shape.padded_value_width())),
      dq(pieces.take(kTileRows * shape.padded_key_width())),
      begins(pieces.take<std::int32_t>(kBlocking.gradient_rows)),
      ends(pieces.take<std::int32_t>(kBlocking.gradient_rows)),
      tiles(pieces.take<TileRange>(kBlocking.gradient_rows / kTileRows)),
      masks(shape, kBlocking.gradient_rows, kBlocking.gradient_keys, pieces),
      kept(shape, kBlocking.gradient_rows, kBlocking.gradient_keys, pieces) {}

namespace {

template <class Space, class Buffers>
std::int64_t workspace_bytes(const spec::Problem& problem) {
  const AttentionShape shape(problem);
  Pieces shared(nullptr), of_thread(nullptr);
  Space(shape, Buffers::kBlocking, shared);
  Buffers(shape, of_thread);
  return shared.used_bytes() + problem.device->num_threads * of_thread.used_bytes();
}

}  // namespace

std::int64_t attention_workspace_bytes(const spec::Problem& problem) {
  return workspace_bytes<AttentionSpace, AttentionBuffers>(problem);
}

std::int64_t attention_gradient_workspace_bytes(const spec::Problem& problem) {
  return workspace_bytes<AttentionGradientSpace, AttentionGradientBuffers>(problem);
}

std::int64_t attention_pairs_workspace_bytes(const spec::Problem& problem) {
  return workspace_bytes<AttentionSpace, AttentionPairBuffers>(problem);
}

std::int64_t attention_gradient_pairs_workspace_bytes(const spec::Problem& problem) {
  return workspace_bytes<AttentionGradientSpace, AttentionGradientPairBuffers>(problem);
}

}  // namespace anabatic::kernels::cpu
