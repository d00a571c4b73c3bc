// SPDX-License-Identifier: Apache-2.0
// A parameter's gradient: the value of the state plus the contributions of this micro-batch.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAccumulate;

}  // namespace anabatic::ops
