// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norm of each run of W elements (Zhang and Sennrich, 2019).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAddRmsNorm, kRmsNorm, kRmsNormInputGradient, kRmsNormWeightGradient;

}  // namespace anabatic::ops
