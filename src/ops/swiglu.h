// SPDX-License-Identifier: Apache-2.0
// silu(gate) times up (Shazeer, 2020).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSwiglu, kSwigluGradient;

}  // namespace anabatic::ops
