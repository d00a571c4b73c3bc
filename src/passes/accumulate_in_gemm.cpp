// SPDX-License-Identifier: Apache-2.0
#include "passes/accumulate_in_gemm.h"

#include <algorithm>
#include <string>

#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool is_product(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->is_plain() && form->role == spec::ProductRole::kWeightGradient;
}

// Contributions are added in the order of their nodes.
NodeId last_writer(const Graph& graph, const Node& sum) {
  NodeId last{0};
  for (std::size_t i = 1; i < sum.inputs.size(); ++i)
    last = std::max(last, graph.value(sum.inputs[i]).producer);
  return last;
}

// The gradient state that ends with this value; null if there is none.
const ir::State* gradient_state(const Graph& graph, ValueId after) {
  for (const ir::State& state : graph.states)
    if (state.role == ir::StateRole::kGradient && state.after == after) return &state;
  return nullptr;
}

bool accumulate_in_gemm(Graph& graph, const PassContext& context) {
  ir::GraphBuilder builder(graph, context.find_op);
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node node = graph.nodes[i];
    if (node.op->name != "sum_squares" || node.tag.segment != intern("optimizer")) continue;
    if (node.inputs.size() > 1) continue;  // a product knows no mask
    if (node.tag.phase == ir::Phase::kUpdate && context.options.micro_batches > 1) continue;
    const NodeId id = graph.value(node.inputs[0]).producer;
    if (id == ir::kNoNode || graph.node(id).op->name != "accumulate") continue;
    const ir::State* gradient = gradient_state(graph, node.inputs[0]);
    const NodeId writer = last_writer(graph, graph.node(id));
    if (gradient == nullptr || !is_product(graph.node(writer))) continue;

    const ValueId squares = node.outputs[0];
    Node& product = graph.node(writer);
    spec::ProductForm form = *ir::product_form(product);
    form.sums_squares = true;
    product.op = context.find_product(form);
    product.outputs.push_back(squares);
    graph.value(squares).producer = writer;
    if (node.tag.phase == ir::Phase::kUpdate) {
      builder.state_of(gradient->owner, ir::StateRole::kSquares, graph.value(squares).type);
      graph.states.back().after = squares;
    }
    graph.nodes[i].outputs.clear();
    keep[i] = false;
  }
  return ir::remove_nodes(graph, keep);
}

}  // namespace

const Pass kAccumulateInGemm{
    .name = "accumulate_in_gemm", .needs = {"updated"}, .run = accumulate_in_gemm};

}  // namespace anabatic::passes
