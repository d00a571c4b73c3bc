// SPDX-License-Identifier: Apache-2.0
// The body of a model, from tokens to logits: embedding, layers, head.
#pragma once
#include <vector>

#include "model/blocks/blocks.h"

namespace anabatic::model {

// Values of a model's body.
struct ModelValues {
  ir::ValueId logits = ir::kNoValue;  // [T, vocabulary]
  ir::ValueId hidden = ir::kNoValue;  // [T, hidden], normalised
  ir::ValueId embedding_weight = ir::kNoValue, head_weight = ir::kNoValue;  // [vocabulary, hidden]
  ir::ValueId rope_table = ir::kNoValue;
};

// Appends one entry to `routers` for each layer with experts.
ModelValues add_model(ModelBuilder& builder, LayerInputs inputs,
                      std::vector<RouterOutputs>& routers);

// Parts of it. Rows of the embedding [T, hidden]:
ir::ValueId add_embedding(ModelBuilder& builder, ir::ValueId weight, ir::ValueId tokens);
// A layer with its norms and residual connections.
ir::ValueId add_layer(ModelBuilder& builder, const LayerSpec& layer, ir::ValueId hidden,
                      const LayerInputs& inputs, std::vector<RouterOutputs>& routers);
// Logits of normalised rows.
ir::ValueId add_logits(ModelBuilder& builder, ir::ValueId hidden, ir::ValueId head_weight);

}  // namespace anabatic::model
