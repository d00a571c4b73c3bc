// SPDX-License-Identifier: Apache-2.0
// The table of all ops.
#pragma once
#include <span>
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::ops {

// In alphabetical order of names.
std::span<const ir::OpSchema* const> all_ops();

// Null if there is no op of that name.
const ir::OpSchema* find_op(std::string_view name);

}  // namespace anabatic::ops
