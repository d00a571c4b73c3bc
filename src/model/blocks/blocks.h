// SPDX-License-Identifier: Apache-2.0
// Blocks of a layer as functions, one source file each. A block adds its ops and returns its result
// [T, hidden]. Its input x [T, hidden] is normalised.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/model_builder.h"

namespace anabatic::model {

// Values that layers read, kNoValue where a model has no such input.
struct LayerInputs {
  ir::ValueId tokens = ir::kNoValue, positions = ir::kNoValue;
  ir::ValueId key_begin = ir::kNoValue, key_end = ir::kNoValue;
  ir::ValueId documents = ir::kNoValue;     // kNoValue: no row is padding
  ir::ValueId cache_places = ir::kNoValue;  // kNoValue: no caches
  std::int64_t cache_capacity = 0;
  ir::ValueId rope_table = ir::kNoValue;  // [T, head_dim]; set by add_model where heads rotate
  // Lists of key blocks, kNoValue without; the share of pairs that they keep, by window.
  ir::ValueId block_offsets = ir::kNoValue, block_ids = ir::kNoValue;
  std::int64_t block_size = 0;
  std::map<std::int64_t, double> block_densities{};
};

// Values of one MoE layer for auxiliary losses and metrics.
struct RouterOutputs {
  std::int64_t layer = 0, top_k = 0;
  bool chooses_by_softmax = true;               // and by nothing else: no bias, no groups
  ir::ValueId logits = ir::kNoValue;            // [T, E]
  ir::ValueId probabilities = ir::kNoValue;     // [T, E]
  ir::ValueId experts = ir::kNoValue;           // i32[T, k]
  ir::ValueId counts = ir::kNoValue;            // f32[E]
  ir::ValueId probability_sums = ir::kNoValue;  // f32[E]
};

ir::ValueId add_attention(ModelBuilder& builder, const Gqa& spec, ir::ValueId x,
                          const LayerInputs& inputs);

ir::ValueId add_attention(ModelBuilder& builder, const Mla& spec, ir::ValueId x,
                          const LayerInputs& inputs);

// Adds dropout of attention's probabilities, where there is any, to its operands and attributes.
// The lists of key blocks follow.
void add_attention_dropout(ModelBuilder& builder, std::vector<ir::ValueId>& operands,
                           spec::Attributes& attributes);

// Adds the lists of key blocks, where there are any, to the operands and attributes of attention.
void add_key_blocks(const LayerInputs& inputs, std::int64_t window,
                    std::vector<ir::ValueId>& operands, spec::Attributes& attributes);

// Writes rows [T, width] to the layer's cache of that name. Returns the cache after that.
ir::ValueId add_to_cache(ModelBuilder& builder, ir::ValueId rows, const char* key,
                         std::int64_t width, const LayerInputs& inputs);

// gate, up and down projections as parameters NAME.gate, ..., and FILE.gate_proj, ... in files. No
// gate where the activation has one operand.
ir::ValueId add_mlp(ModelBuilder& builder, const Mlp& spec, ir::ValueId x, const std::string& name,
                    const std::string& file);

ir::ValueId add_feed_forward(ModelBuilder& builder, const Mlp& spec, ir::ValueId x,
                             const LayerInputs& inputs, std::vector<RouterOutputs>& routers);
// Appends to `routers`.
ir::ValueId add_feed_forward(ModelBuilder& builder, const Moe& spec, ir::ValueId x,
                             const LayerInputs& inputs, std::vector<RouterOutputs>& routers);

}  // namespace anabatic::model
