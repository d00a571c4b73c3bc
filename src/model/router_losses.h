// SPDX-License-Identifier: Apache-2.0
// The losses of routers: what keeps experts equally busy and logits small.
#pragma once
#include <vector>

#include "model/blocks/blocks.h"

namespace anabatic::model {

// The objective: `loss`, and what the options add to it of the routers' own losses. Adds the
// outputs aux_loss, z_loss (when it has a coefficient) and expert_load.N. A step of several
// micro-batches weighs these losses by tokens, or by documents where they are means of documents,
// so that what its micro-batches give adds up; the inputs `inverse_real_tokens` and
// `inverse_documents` are of the whole step.
ir::ValueId add_router_losses(ir::GraphBuilder& builder, const BuildOptions& options,
                              ir::ValueId loss, ir::ValueId documents,
                              const std::vector<RouterOutputs>& routers);

}  // namespace anabatic::model
