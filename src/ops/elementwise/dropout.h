// SPDX-License-Identifier: Apache-2.0
// Dropout: x / (1 - rate) where an element is kept, else 0. Its own gradient.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kDropout;

}  // namespace anabatic::ops
