// SPDX-License-Identifier: Apache-2.0
// New rows into a cache, in place.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCacheWrite;

}  // namespace anabatic::ops
