// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/drop_kept_products.h"

#include <algorithm>

#include "analysis/rebuild.h"
#include "ir/rewrite.h"
#include "passes/readers.h"
#include "spec/product.h"

namespace anabatic::passes {
namespace {

bool drop_kept_products(ir::Graph& graph, const PassContext& context) {
  const Readers readers(graph);
  bool is_changed = false;
  for (ir::Node& node : graph.nodes) {
    if (node.tag.phase != ir::Phase::kForward || !analysis::keeps_products(node)) continue;
    if (!std::all_of(node.outputs.begin() + 1, node.outputs.end(),
                     [&](ir::ValueId product) { return readers.has_only(product, 0); }))
      continue;
    spec::ProductForm form = *ir::product_form(node);
    form.keeps = spec::KeptProducts::kNone;
    node.op = context.find_product(form);
    node.outputs.resize(1);
    is_changed = true;
  }
  if (is_changed) ir::drop_undefined_values(graph);
  return is_changed;
}

}  // namespace

const Pass kDropKeptProducts{.name = "drop_kept_products",
                             .needs = {"differentiated"},
                             .of_decisions = true,
                             .run = drop_kept_products};

}  // namespace anabatic::passes
