// SPDX-License-Identifier: Apache-2.0
// A tensor times a constant, one kept within ±limit (elements within that, those on it too, pass a
// gradient), and rows times the sigmoid of one number each.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kClamp, kClampGradient, kGateRows, kGateRowsGradient, kScale, kScaleBy;

}  // namespace anabatic::ops
