// SPDX-License-Identifier: Apache-2.0
// The language-model loss and its gradient; labels of -100 are ignored.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCrossEntropy, kCrossEntropyGradient;

}  // namespace anabatic::ops
