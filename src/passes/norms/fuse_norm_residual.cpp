// SPDX-License-Identifier: Apache-2.0
#include "passes/norms/fuse_norm_residual.h"

#include <utility>

#include "base/error.h"
#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

class NormResidualFuser {
 public:
  NormResidualFuser(Graph& graph, const PassContext& context)
      : graph_(graph),
        context_(context),
        num_uses_(graph.values.size(), 0),
        keep_(graph.nodes.size(), true) {
    for (const Node& node : graph.nodes)
      for (const ValueId input : node.inputs) ++num_uses_[index(input)];
    for (const ValueId output : graph.outputs) ++num_uses_[index(output)];
    for (const ir::State& state : graph.states) ++num_uses_[index(state.after)];
    if (graph.objective) ++num_uses_[index(*graph.objective)];
  }

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!keep_[i]) continue;
      if (graph_.nodes[i].op->name == "rms_norm") changed |= fuse_norm(i);
      if (graph_.nodes[i].op->name == "add") changed |= fuse_gradient(i);
    }
    if (changed) ir::keep_nodes(graph_, keep_);
    return changed;
  }

 private:
  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  const ir::OpSchema* find(std::string_view name) const {
    const ir::OpSchema* op = context_.find_op(name);
    ANABATIC_CHECK(op != nullptr, "[fuse_norm_residual] no op '{}'", name);
    return op;
  }

  // The add becomes the fused node, so that all readers of its sum are still after it.
  bool fuse_norm(std::size_t i) {
    const Node& norm = graph_.nodes[i];
    const ir::NodeId id = graph_.value(norm.inputs[0]).producer;
    // A weight that a node computes might be computed after the add.
    if (id == ir::kNoNode || graph_.value(norm.inputs[1]).producer != ir::kNoNode) return false;
    Node& add = graph_.node(id);
    if (add.op->name != "add" || add.tag.phase != norm.tag.phase) return false;
    add.op = find("add_rms_norm");
    add.attributes = norm.attributes;
    add.inputs = {add.inputs[0], norm.inputs[1], add.inputs[1]};
    add.outputs.push_back(norm.outputs[0]);
    keep_[i] = false;
    return true;
  }

  bool fuse_gradient(std::size_t i) {
    Node& add = graph_.nodes[i];
    for (const std::size_t side : {std::size_t{1}, std::size_t{0}}) {
      const ValueId gradient = add.inputs[side], residual = add.inputs[1 - side];
      const ir::NodeId id = graph_.value(gradient).producer;
      if (id == ir::kNoNode || num_uses_[index(gradient)] != 1) continue;
      const Node& norm = graph_.node(id);
      if (norm.op->name != "rms_norm_input_gradient" || norm.inputs.size() != 3 ||
          norm.tag.phase != add.tag.phase || type(gradient) != type(residual))
        continue;
      Node fused = norm;
      fused.inputs.push_back(residual);
      fused.outputs = add.outputs;
      keep_[index(id)] = false;
      add = std::move(fused);
      return true;
    }
    return false;
  }

  Graph& graph_;
  const PassContext& context_;
  std::vector<int> num_uses_;  // by value
  std::vector<bool> keep_;     // by node
};

bool fuse_norm_residual(Graph& graph, const PassContext& context) {
  return NormResidualFuser(graph, context).run();
}

}  // namespace

const Pass kFuseNormResidual{
    .name = "fuse_norm_residual", .needs = {"precision_chosen"}, .run = fuse_norm_residual};

}  // namespace anabatic::passes
