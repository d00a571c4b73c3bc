// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_qkv.h"

#include "passes/join_products.h"

namespace anabatic::passes {
namespace {

constexpr std::string_view kAttentionSegments[] = {"attention"};

bool fuse_qkv(ir::Graph& graph, const PassContext& context) {
  return join_products(graph, context, kAttentionSegments);
}

}  // namespace

const Pass kFuseQkv{.name = "fuse_qkv", .needs = {"precision_chosen"}, .run = fuse_qkv};

}  // namespace anabatic::passes
