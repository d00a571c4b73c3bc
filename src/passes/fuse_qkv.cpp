// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_qkv.h"

#include "passes/join_products.h"

namespace anabatic::passes {
namespace {

constexpr std::string_view kSegments[] = {"attention"};

bool run(ir::Graph& graph, const PassContext& context) {
  return join_products(graph, context, kSegments);
}

}  // namespace

const Pass kFuseQkv{.name = "fuse_qkv", .needs = {"precision_chosen"}, .run = run};

}  // namespace anabatic::passes
