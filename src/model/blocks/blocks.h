// SPDX-License-Identifier: Apache-2.0
// Blocks of a layer as functions: each adds what its spec says and returns its result [T, hidden],
// of an input x [T, hidden] that is normalised. One source file each.
#pragma once
#include <cstdint>
#include <vector>

#include "model/model_builder.h"

namespace anabatic::model {

// What layers read. kNoValue where a model does without.
struct LayerInputs {
  ir::ValueId tokens = ir::kNoValue, positions = ir::kNoValue;
  ir::ValueId key_begin = ir::kNoValue, key_end = ir::kNoValue;
  ir::ValueId documents = ir::kNoValue;    // kNoValue: every row is a token of one
  ir::ValueId cache_first = ir::kNoValue;  // kNoValue: no caches
  std::int64_t cache_capacity = 0;
  ir::ValueId rope_table = ir::kNoValue;  // [T, head_dim]; add_model makes it
};

// What the auxiliary losses and the metrics read of one MoE layer.
struct RouterOutputs {
  std::int64_t layer = 0, top_k = 0;
  ir::ValueId logits = ir::kNoValue;            // [T, E]
  ir::ValueId probabilities = ir::kNoValue;     // [T, E]
  ir::ValueId experts = ir::kNoValue;           // i32[T, k]
  ir::ValueId counts = ir::kNoValue;            // f32[E]
  ir::ValueId probability_sums = ir::kNoValue;  // f32[E]
};

ir::ValueId add_attention(ModelBuilder& builder, const Gqa& spec, ir::ValueId x,
                          const LayerInputs& inputs);

ir::ValueId add_feed_forward(ModelBuilder& builder, const Mlp& spec, ir::ValueId x,
                             const LayerInputs& inputs, std::vector<RouterOutputs>& routers);
// Appends to `routers`.
ir::ValueId add_feed_forward(ModelBuilder& builder, const Moe& spec, ir::ValueId x,
                             const LayerInputs& inputs, std::vector<RouterOutputs>& routers);

}  // namespace anabatic::model
