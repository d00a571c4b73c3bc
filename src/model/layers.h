// SPDX-License-Identifier: Apache-2.0
// Layers as functions: each adds the nodes of one block to the graph and returns its result
// [T, hidden]. Activations are f32; passes lower them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op_schema.h"
#include "model/model.h"

namespace anabatic::model {

// What every layer reads.
struct LayerInputs {
  ir::ValueId rope_table = ir::kNoValue;  // [T, head_dim]
  ir::ValueId key_begin = ir::kNoValue, key_end = ir::kNoValue;
  ir::ValueId cache_first = ir::kNoValue;  // kNoValue: no caches
  std::int64_t cache_capacity = 0;
  ir::ValueId documents = ir::kNoValue;  // kNoValue: every row is a token of one
};

// What the auxiliary losses and the metrics read of one MoE layer.
struct RouterOutputs {
  std::int64_t layer = 0;
  ir::ValueId logits = ir::kNoValue;            // [T, E]
  ir::ValueId probabilities = ir::kNoValue;     // [T, E]
  ir::ValueId experts = ir::kNoValue;           // i32[T, k]
  ir::ValueId counts = ir::kNoValue;            // f32[E]
  ir::ValueId probability_sums = ir::kNoValue;  // f32[E]
};

class LayerBuilder {
 public:
  // Adds all parameters of `config` to the graph as states.
  LayerBuilder(ir::GraphBuilder& builder, const ModelConfig& config);

  // hidden + attention(norm(hidden)).
  ir::ValueId attention_block(ir::ValueId hidden, std::int64_t layer, const LayerInputs& inputs);
  // hidden + mlp(norm(hidden)).
  ir::ValueId mlp_block(ir::ValueId hidden, std::int64_t layer);
  // hidden + experts(norm(hidden)); appends to `routers`.
  ir::ValueId moe_block(ir::ValueId hidden, std::int64_t layer, const LayerInputs& inputs,
                        std::vector<RouterOutputs>& routers);
  // Final norm and head: logits [T, vocabulary].
  ir::ValueId head(ir::ValueId hidden);

  ir::ValueId parameter(const std::string& name) const;
  void tag(std::int64_t layer, std::string_view segment);

 private:
  // Each run of the weight's width normalised; `name` is the state without ".weight".
  ir::ValueId norm(ir::ValueId x, const std::string& name);
  // With the bias if the model has one of that name.
  ir::ValueId linear(ir::ValueId x, const std::string& name);
  // The activation of a feed-forward layer.
  ir::ValueId activation(ir::ValueId gate, ir::ValueId up, const std::string& name);
  // Rows go into layer N's cache; returns the cache after the write.
  ir::ValueId cached(ir::ValueId rows, std::int64_t layer, const char* which,
                     const LayerInputs& inputs);

  ir::GraphBuilder& builder_;
  const ModelConfig& config_;
  std::map<std::string, ir::ValueId, std::less<>> parameters_;
};

}  // namespace anabatic::model
