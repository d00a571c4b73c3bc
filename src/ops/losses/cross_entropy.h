// SPDX-License-Identifier: Apache-2.0
// The language-model loss and its gradient; labels of -100 are ignored. A row's
// weight multiplies its own loss; it may be negative, and 0 ignores the row.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCrossEntropy, kCrossEntropyGradient;

}  // namespace anabatic::ops
