// SPDX-License-Identifier: Apache-2.0
// The factor that scales gradients so that their global norm does not exceed a limit.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kClipFactor;

}  // namespace anabatic::ops
