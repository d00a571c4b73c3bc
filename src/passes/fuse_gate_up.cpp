// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_gate_up.h"

#include "passes/join_products.h"

namespace anabatic::passes {
namespace {

constexpr std::string_view kSegments[] = {"experts", "mlp"};

bool run(ir::Graph& graph, const PassContext& context) {
  return join_products(graph, context, kSegments);
}

}  // namespace

const Pass kFuseGateUp{.name = "fuse_gate_up", .needs = {"precision_chosen"}, .run = run};

}  // namespace anabatic::passes
