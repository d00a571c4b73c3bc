// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_swiglu.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "ir/rewrite.h"
#include "passes/readers.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr std::size_t kX = 0, kWeight = 1, kOffsets = 2;

class Fuser {
 public:
  Fuser(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), readers_(graph), keep_(graph.nodes.size(), true) {}

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].op->name == "swiglu") changed |= fuse_forward(i);
      if (graph_.nodes[i].op->name == "swiglu_gradient") changed |= fuse_gradient(i);
    }
    if (!changed) return false;
    ir::keep_nodes(graph_, keep_);
    ir::sort_nodes(graph_);
    return true;
  }

 private:
  const ir::OpSchema* find(const std::string& name) const {
    const ir::OpSchema* op = context_.find_op(name);
    ANABATIC_CHECK(op != nullptr, "[fuse_swiglu] no op '{}'", name);
    return op;
  }

  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  // The product, dense or grouped, that makes `value` in the phase of `reader`; null for another
  // producer, and for one with a bias.
  const Node* product(ValueId value, const std::string& op, const Node& reader) const {
    const NodeId id = graph_.value(value).producer;
    if (id == ir::kNoNode || !keep_[index(id)]) return nullptr;
    const Node& node = graph_.node(id);
    const bool is_dense = node.op->name == op && node.inputs.size() == 2;
    const bool is_grouped = node.op->name == "grouped_" + op;
    if ((!is_dense && !is_grouped) || node.tag.phase != reader.tag.phase) return nullptr;
    // Of one dtype, from a weight that no node makes: nothing may come in between.
    if (type(value).dtype != type(node.inputs[kX]).dtype ||
        graph_.value(node.inputs[kWeight]).producer != ir::kNoNode)
      return nullptr;
    return &node;
  }

  bool fuse_forward(std::size_t i) {
    const Node swiglu = graph_.nodes[i];
    const ValueId gate = swiglu.inputs[0], up = swiglu.inputs[1];
    const Node *left = product(gate, "linear", swiglu), *right = product(up, "linear", swiglu);
    if (left == nullptr || right == nullptr || left == right || left->op != right->op ||
        left->attributes != right->attributes || left->inputs.size() != right->inputs.size() ||
        type(left->inputs[kWeight]) != type(right->inputs[kWeight]))
      return false;
    for (std::size_t k = 0; k < left->inputs.size(); ++k)
      if (k != kWeight && left->inputs[k] != right->inputs[k]) return false;

    const bool keeps = !readers_.has_only(gate, 1) || !readers_.has_only(up, 1);
    Node fused{
        .op = find(std::string(left->op->name) + (keeps ? "_swiglu_with_products" : "_swiglu")),
        .attributes = left->attributes,
        .inputs = {left->inputs[kX], left->inputs[kWeight], right->inputs[kWeight]},
        .outputs = swiglu.outputs,
        .tag = swiglu.tag};
    fused.attributes.erase("output_dtype");
    fused.inputs.insert(fused.inputs.end(), left->inputs.begin() + kOffsets, left->inputs.end());
    if (keeps) fused.outputs.insert(fused.outputs.end(), {gate, up});
    keep_[index(graph_.value(gate).producer)] = false;
    keep_[index(graph_.value(up).producer)] = false;
    graph_.nodes[i] = std::move(fused);
    return true;
  }

  bool fuse_gradient(std::size_t i) {
    const Node gradient = graph_.nodes[i];
    const ValueId dh = gradient.inputs[2];
    const Node* down = product(dh, "linear_input_gradient", gradient);
    if (down == nullptr || !readers_.has_only(dh, 1)) return false;
    Node fused{
        .op = find(down->op->name == "linear_input_gradient" ? "linear_swiglu_gradient"
                                                             : "grouped_linear_swiglu_gradient"),
        .inputs = down->inputs,
        .outputs = gradient.outputs,
        .tag = gradient.tag};
    fused.inputs.insert(fused.inputs.end(), {gradient.inputs[0], gradient.inputs[1]});
    keep_[index(graph_.value(dh).producer)] = false;
    graph_.nodes[i] = std::move(fused);
    return true;
  }

  Graph& graph_;
  const PassContext& context_;
  Readers readers_;
  std::vector<bool> keep_;  // by node
};

bool run(Graph& graph, const PassContext& context) { return Fuser(graph, context).run(); }

}  // namespace

const Pass kFuseSwiglu{.name = "fuse_swiglu", .needs = {"precision_chosen"}, .run = run};

}  // namespace anabatic::passes
