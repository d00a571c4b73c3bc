// SPDX-License-Identifier: Apache-2.0
// Moves expert rows back to their tokens, weighted and summed.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kUnpermute, kUnpermuteGradient;

}  // namespace anabatic::ops
