// SPDX-License-Identifier: Apache-2.0
// Moves token rows into the order of experts, and sums a token's rows back.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kPermute, kPermuteGradient;

}  // namespace anabatic::ops
