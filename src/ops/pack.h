// SPDX-License-Identifier: Apache-2.0
// A matrix, or a stack of them, in the order in which products read it (tensor/panels.h), and back.
#pragma once
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::ops {

// What the attribute `layout` calls rows.
inline constexpr std::string_view kRowMajorName = "row_major";

extern const ir::OpSchema kPack;

}  // namespace anabatic::ops
