// SPDX-License-Identifier: Apache-2.0
// The body of a model, from tokens to logits: embedding, layers, head.
#pragma once
#include <vector>

#include "model/blocks/blocks.h"

namespace anabatic::model {

// Returns logits [T, vocabulary]. Appends one entry to `routers` for each layer with experts.
ir::ValueId add_model(ModelBuilder& builder, LayerInputs inputs,
                      std::vector<RouterOutputs>& routers);

}  // namespace anabatic::model
