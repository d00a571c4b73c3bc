// SPDX-License-Identifier: Apache-2.0
// The loss of preferences (DPO) from log-probabilities of tokens, and what each token's own
// cross-entropy has to weigh so that it has this loss's gradient.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kPreferenceLoss;

}  // namespace anabatic::ops
