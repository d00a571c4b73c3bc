// SPDX-License-Identifier: Apache-2.0
// What fuse_qkv and fuse_gate_up share: products that read one x become one op, forward and
// backward, in the segments that a pass names.
#pragma once
#include <span>
#include <string_view>

#include "passes/pass.h"

namespace anabatic::passes {

// True iff anything was joined. Linear in nodes.
bool join_products(ir::Graph& graph, const PassContext& context,
                   std::span<const std::string_view> segments);

}  // namespace anabatic::passes
