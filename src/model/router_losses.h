// SPDX-License-Identifier: Apache-2.0
// Auxiliary losses of routers, which balance experts and keep logits small.
#pragma once
#include <vector>

#include "model/blocks/blocks.h"

namespace anabatic::model {

// Returns the objective: `loss` plus the routers' losses that the options ask for. Adds the outputs
// aux_loss, z_loss (when it has a coefficient) and expert_load.N. The inputs `inverse_real_tokens`
// and `inverse_documents` count the whole step, so that losses of micro-batches add up to the
// step's.
ir::ValueId add_router_losses(ir::GraphBuilder& builder, const BuildOptions& options,
                              ir::ValueId loss, ir::ValueId documents,
                              const std::vector<RouterOutputs>& routers);

}  // namespace anabatic::model
