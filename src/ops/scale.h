// SPDX-License-Identifier: Apache-2.0
// A tensor times a constant, and one kept within ±limit. Elements within that, those on it too,
// pass a gradient.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kClamp, kClampGradient, kScale;

}  // namespace anabatic::ops
