// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_activation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ir/rewrite.h"
#include "passes/readers.h"
#include "spec/product_bias.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr std::size_t kX = 0, kWeight = 1, kOffsets = 2;

class ActivationFuser {
 public:
  ActivationFuser(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), readers_(graph), keep_(graph.nodes.size(), true) {}

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].op->name == "activation") changed |= fuse_forward(i);
      if (graph_.nodes[i].op->name == "activation_gradient") changed |= fuse_gradient(i);
    }
    if (!changed) return false;
    ir::keep_nodes(graph_, keep_);
    ir::sort_nodes(graph_);
    return true;
  }

 private:
  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  // The product, dense or grouped, that makes `value` in the phase of `reader`; null for another
  // producer, and for a dense one with a bias.
  const Node* product(ValueId value, spec::ProductRole role, const Node& reader) const {
    const NodeId id = graph_.value(value).producer;
    if (id == ir::kNoNode || !keep_[index(id)]) return nullptr;
    const Node& node = graph_.node(id);
    const spec::ProductForm* form = ir::product_form(node);
    if (form == nullptr || !form->is_plain() || form->role != role) return nullptr;
    const bool has_bias = !form->is_grouped && node.inputs.size() > 2;
    if (has_bias || node.tag.phase != reader.tag.phase) return nullptr;
    // The result has the dtype of x, and no node makes the weight: nothing may come in between.
    if (type(value).dtype != type(node.inputs[kX]).dtype ||
        graph_.value(node.inputs[kWeight]).producer != ir::kNoNode)
      return nullptr;
    return &node;
  }

  // The products of one x that make the operands; empty where one is missing or differs.
  std::vector<const Node*> products_of(const Node& activation, std::size_t count) const {
    std::vector<const Node*> products;
    for (std::size_t i = 0; i < count; ++i) {
      const Node* node = product(activation.inputs[i], spec::ProductRole::kForward, activation);
      if (node == nullptr) return {};
      if (i > 0 && (node == products[0] || !are_alike(*node, *products[0]))) return {};
      products.push_back(node);
    }
    return products;
  }

  // But for their weights, which are of one type, and their biases.
  bool are_alike(const Node& a, const Node& b) const {
    if (a.op != b.op || a.attributes != b.attributes || a.inputs.size() != b.inputs.size() ||
        type(a.inputs[kWeight]) != type(b.inputs[kWeight]))
      return false;
    const std::size_t count = spec::without_biases(a.inputs, a.attributes).size();
    for (std::size_t k = 0; k < count; ++k)
      if (k != kWeight && a.inputs[k] != b.inputs[k]) return false;
    return true;
  }

  bool fuse_forward(std::size_t i) {
    const Node activation = graph_.nodes[i];
    const auto count =
        static_cast<std::size_t>(num_operands(spec::activation_of(activation.attributes)));
    if (activation.inputs.size() != count) return false;
    const std::vector<const Node*> products = products_of(activation, count);
    if (products.empty()) return false;
    const bool keeps = std::any_of(activation.inputs.begin(), activation.inputs.end(),
                                   [&](ValueId operand) { return !readers_.has_only(operand, 1); });
    const Node& first = *products[0];
    spec::ProductForm form = *ir::product_form(first);
    form.has_activation = true;
    if (keeps) form.keeps = spec::KeptProducts::kWhole;
    Node fused{.op = context_.find_product(form),
               .attributes = first.attributes,
               .inputs = {first.inputs[kX]},
               .outputs = activation.outputs,
               .tag = activation.tag};
    fused.attributes.erase("output_dtype");
    spec::copy_activation(activation.attributes, fused.attributes);
    for (const Node* node : products) fused.inputs.push_back(node->inputs[kWeight]);
    const auto others = spec::without_biases(first.inputs, first.attributes).subspan(kOffsets);
    fused.inputs.insert(fused.inputs.end(), others.begin(), others.end());
    for (const Node* node : products)
      for (const ValueId bias : spec::biases_of(node->inputs, node->attributes))
        fused.inputs.push_back(bias);
    if (keeps)
      fused.outputs.insert(fused.outputs.end(), activation.inputs.begin(), activation.inputs.end());
    for (const ValueId operand : activation.inputs)
      keep_[index(graph_.value(operand).producer)] = false;
    graph_.nodes[i] = std::move(fused);
    return true;
  }

  bool fuse_gradient(std::size_t i) {
    const Node gradient = graph_.nodes[i];
    const ValueId dh = gradient.inputs.back();
    const Node* down = product(dh, spec::ProductRole::kInputGradient, gradient);
    if (down == nullptr || !readers_.has_only(dh, 1)) return false;
    spec::ProductForm form = *ir::product_form(*down);
    form.has_activation = true;
    Node fused{.op = context_.find_product(form),
               .attributes = gradient.attributes,
               .inputs = down->inputs,
               .outputs = gradient.outputs,
               .tag = gradient.tag};
    fused.inputs.insert(fused.inputs.end(), gradient.inputs.begin(), gradient.inputs.end() - 1);
    keep_[index(graph_.value(dh).producer)] = false;
    graph_.nodes[i] = std::move(fused);
    return true;
  }

  Graph& graph_;
  const PassContext& context_;
  Readers readers_;
  std::vector<bool> keep_;  // by node
};

bool fuse_activation(Graph& graph, const PassContext& context) {
  return ActivationFuser(graph, context).run();
}

}  // namespace

const Pass kFuseActivation{
    .name = "fuse_activation", .needs = {"precision_chosen"}, .run = fuse_activation};

}  // namespace anabatic::passes
