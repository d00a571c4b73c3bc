// SPDX-License-Identifier: Apache-2.0
// A tensor times a constant.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kScale;

}  // namespace anabatic::ops
