// SPDX-License-Identifier: Apache-2.0
// Moves token rows into the order of experts, and sums a token's rows back.
#pragma once
#include <optional>

#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kPermute, kPermuteGradient;

// Whether its first three outputs are a row map, the map's inverse and the offsets of experts.
bool is_row_sort(const ir::Node& node);

// The inverse of such a map, which its node gives too; null for any other value.
std::optional<ir::ValueId> inverse_map(const ir::Graph& graph, ir::ValueId map);

}  // namespace anabatic::ops
