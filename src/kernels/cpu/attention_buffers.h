// SPDX-License-Identifier: Apache-2.0
// What each thread of an attention call holds in its workspace: operands in fp32
// (attention_tiles.h says how they lie).
#pragma once
#include "kernels/cpu/attention_shape.h"

namespace anabatic::kernels::cpu {

// Floats between rows of scores; no power of two, for they are also read along columns.
inline constexpr std::int64_t kScoreStride = kFloatBlocking.keys + 16,
                              kGradientStride = kFloatBlocking.gradient_keys + 16;

struct AttentionBuffers {
  static constexpr AttentionBlocking kBlocking = kFloatBlocking;

  float *queries, *keys, *values, *scores, *sums, *minus_largest, *totals;
  std::int32_t *begins, *ends;
  TileRange* tiles;
  AttentionBuffers(const AttentionShape& shape, Pieces& pieces);
};

struct AttentionGradientBuffers {
  static constexpr AttentionBlocking kBlocking = kFloatBlocking;

  float *keys, *keys_across, *values_across;         // of the block of keys
  float *queries, *douts, *minus_lse, *minus_delta;  // of the block of rows
  float *weights, *gradients;                        // p and ds, [rows, kGradientStride]
  float *dq, *dk, *dv;
  std::int32_t *begins, *ends;
  TileRange* tiles;
  AttentionGradientBuffers(const AttentionShape& shape, Pieces& pieces);
};

}  // namespace anabatic::kernels::cpu
