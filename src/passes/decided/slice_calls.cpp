// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/slice_calls.h"

#include "analysis/slices.h"
#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

bool slice_calls(ir::Graph& graph, const PassContext& context) {
  std::vector<bool> keep(graph.nodes.size(), true);
  bool is_changed = false;
  for (const analysis::SliceableKind& kind : analysis::sliceable_kinds(graph)) {
    const auto found = context.options.decisions->slices.find(kind.key);
    if (found == context.options.decisions->slices.end()) continue;
    is_changed = true;
    for (const analysis::SliceableCall& call : kind.calls) {
      graph.nodes[index(call.node)] = analysis::sliced(graph, call, found->second);
      for (const ir::NodeId pack : call.packs) keep[index(pack)] = false;
    }
  }
  if (is_changed) ir::keep_nodes(graph, keep);
  return is_changed;
}

}  // namespace

const Pass kSliceCalls{.name = "slice_calls",
                       .needs = {"differentiated"},
                       .required = true,
                       .of_decisions = true,
                       .run = slice_calls};

}  // namespace anabatic::passes
