// SPDX-License-Identifier: Apache-2.0
// How a derived state follows from its primary: the one rule, by their types. The update's
// refreshing and the one after loading use the same ops, hence the same kernels.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::passes {

// Adds the node that makes a value of type `derived` from `primary`: a `pack` where either is
// packed, else a `cast`, half away from zero. InternalError when no op does it.
ir::ValueId add_derivation(ir::GraphBuilder& builder, ir::ValueId primary,
                           const TensorType& derived);

}  // namespace anabatic::passes
