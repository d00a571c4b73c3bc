// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019), as PyTorch computes it.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAdamw, kAdamwPack, kAdamwPackTransposed, kAdamwSplit,
    kAdamwSplitPackTransposed, kAdamwSplitSlicePackTransposed;

}  // namespace anabatic::ops
