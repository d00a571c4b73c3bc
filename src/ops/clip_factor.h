// SPDX-License-Identifier: Apache-2.0
// What gradients are multiplied by so that their global norm stays below a limit.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kClipFactor;

}  // namespace anabatic::ops
