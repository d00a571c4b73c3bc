// SPDX-License-Identifier: Apache-2.0
// Heads whose first columns are the same in all of them, as the keys of multi-head latent
// attention.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kJoinHeads, kJoinHeadsGradient;

}  // namespace anabatic::ops
