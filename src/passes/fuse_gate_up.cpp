// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_gate_up.h"

#include "passes/join_products.h"

namespace anabatic::passes {
namespace {

constexpr std::string_view kFeedForwardSegments[] = {"experts", "mlp"};

bool fuse_gate_up(ir::Graph& graph, const PassContext& context) {
  return join_products(graph, context, kFeedForwardSegments);
}

}  // namespace

const Pass kFuseGateUp{.name = "fuse_gate_up", .needs = {"precision_chosen"}, .run = fuse_gate_up};

}  // namespace anabatic::passes
