// SPDX-License-Identifier: Apache-2.0
// Writes new rows into a cache, in place, each at a place of its own.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kCacheWrite;

}  // namespace anabatic::ops
