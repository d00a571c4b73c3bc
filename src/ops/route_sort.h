// SPDX-License-Identifier: Apache-2.0
// Sorts expert rows: a stable counting sort of the chosen experts.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kRouteSort;

}  // namespace anabatic::ops
