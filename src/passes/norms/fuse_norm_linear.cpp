// SPDX-License-Identifier: Apache-2.0
#include "passes/norms/fuse_norm_linear.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "analysis/product_norms.h"
#include "base/error.h"
#include "ir/op_schema.h"
#include "passes/readers.h"
#include "spec/product_prologue.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using analysis::RowNorm;
using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

class NormLinearFuser {
 public:
  NormLinearFuser(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), readers_(graph) {}

  // Dropout first: where products take it, all that reads its norm are products.
  bool run() {
    bool changed = false;
    for (Node& node : graph_.nodes) changed |= fuse_dropout(node);
    readers_ = Readers(graph_);
    for (Node& node : graph_.nodes) changed |= fuse_norm(node);
    return changed;
  }

 private:
  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  // Whether the node may read y in another way: y is its rows, and nothing else of it.
  bool may_take(const Node& node, ValueId y) const {
    const spec::ProductForm* form = ir::product_form(node);
    if (form == nullptr || form->is_grouped || form->role == spec::ProductRole::kInputGradient)
      return false;
    if (node.inputs[0] != y || std::count(node.inputs.begin(), node.inputs.end(), y) != 1)
      return false;
    // The other operand: gradients may be f16 next to bf16.
    return type(node.inputs[1]).value_dtype() == type(y).dtype;
  }
  bool takes_norm(const Node& node, ValueId y) const {
    return may_take(node, y) && !node.attributes.contains(spec::kNorm);
  }
  // Int8 products, and those of an activation, read rows as they are, or their norm.
  bool takes_dropout(const Node& node, ValueId y) const {
    return may_take(node, y) && spec::num_prologue_inputs(node.attributes) == 0 &&
           !ir::product_form(node)->has_activation && !node.attributes.contains("fallback") &&
           std::none_of(node.inputs.begin(), node.inputs.end(),
                        [&](ValueId input) { return is_int8_panels(type(input)); });
  }

  // The nodes that read y, but for dropout that products have taken; none where one of them does
  // not take y, or the backward reads nothing.
  template <class Takes>
  std::vector<NodeId> products_of(ValueId y, Takes&& takes) const {
    std::vector<NodeId> products;
    if (readers_.is_wanted(y)) return products;
    bool is_saved = false;
    for (const NodeId id : readers_.of(y)) {
      const Node& reader = graph_.node(id);
      if (is_unread_dropout(reader)) continue;
      if (!takes(reader)) return {};
      is_saved |= reader.tag.phase != ir::Phase::kForward;
      products.push_back(id);
    }
    return is_saved ? products : std::vector<NodeId>{};
  }
  bool is_unread_dropout(const Node& node) const {
    return node.op->name == "dropout" && readers_.has_only(node.outputs[0], 0);
  }

  bool fuse_dropout(Node& node) {
    if (node.op->name != "dropout" || node.tag.phase != ir::Phase::kForward) return false;
    const ValueId x = node.inputs[0], y = node.outputs[0];
    if (type(x).dtype != DType::kFloat32 && type(x).dtype != DType::kBFloat16) return false;
    const std::vector<NodeId> products =
        products_of(y, [&](const Node& reader) { return takes_dropout(reader, y); });
    if (products.empty()) return false;
    const double apart = seconds(products) + seconds_of(node);
    const std::vector<Node> products_apart = copies(products);
    const std::string& site = spec::get_string(node.attributes, "site");
    for (const NodeId id : products) {
      Node& product = graph_.node(id);
      product.attributes[std::string(spec::kDropoutRate)] = node.attributes.at("rate");
      product.attributes[std::string(spec::kDropoutSite)] = site;
      product.inputs[0] = x;
      product.inputs.push_back(node.inputs[1]);
    }
    const double together = seconds(products);
    if (decide(site, together, apart)) return true;
    restore(products, products_apart);
    return false;
  }

  bool fuse_norm(Node& node) {
    const std::optional<RowNorm> norm = analysis::row_norm_of(graph_, node);
    if (!norm) return false;
    const std::vector<NodeId> products =
        products_of(norm->y, [&](const Node& reader) { return takes_norm(reader, norm->y); });
    if (products.empty()) return false;
    const double apart = seconds(products) + seconds_of(node);
    const Node norm_apart = node;
    const TensorType y = type(norm->y);
    const std::vector<Node> products_apart = copies(products);
    for (const NodeId id : products) {
      Node& product = graph_.node(id);
      product.attributes[std::string(spec::kNorm)] = std::string(norm->word);
      product.inputs[0] = norm->x;
      // Draws of dropout are last.
      const auto end = product.inputs.end() - (spec::drops_x(product.attributes) ? 1 : 0);
      const auto at = product.inputs.insert(end, norm->y);
      product.inputs.insert(at + 1, norm->parameters.begin(), norm->parameters.end());
    }
    become_statistics(node, *norm);
    const double together = seconds(products) + seconds_of(node);
    const Name name = graph_.value(norm->y).name;
    if (decide(name == Name{} ? std::string_view() : text(name), together, apart)) {
      // Y has another type now; what nothing reads stays until dead_code.
      for (const NodeId id : readers_.of(norm->y))
        if (Node& reader = graph_.node(id); is_unread_dropout(reader)) reader.inputs[0] = norm->x;
      return true;
    }
    node = norm_apart;
    graph_.value(norm->y).type = y;
    restore(products, products_apart);
    return false;
  }

  std::vector<Node> copies(std::span<const NodeId> nodes) const {
    std::vector<Node> result;
    for (const NodeId id : nodes) result.push_back(graph_.node(id));
    return result;
  }
  void restore(std::span<const NodeId> nodes, std::span<const Node> before) {
    for (std::size_t i = 0; i < nodes.size(); ++i) graph_.node(nodes[i]) = before[i];
  }

  // 0 where there are no prices.
  double seconds_of(const Node& node) const {
    return context_.seconds == nullptr ? 0 : context_.seconds(graph_, node);
  }
  double seconds(std::span<const NodeId> nodes) const {
    double sum = 0;
    for (const NodeId id : nodes) sum += seconds_of(graph_.node(id));
    return sum;
  }

  // Whether products take what makes the value of this name; empty: it has none.
  bool decide(std::string_view name, double together, double apart) const {
    const bool is_taken = is_asked_for(name).value_or(together <= apart);
    if (context_.options.explanation != nullptr)
      context_.options.explanation->push_back(fmt::format(
          "{}: {}: {:.3g} ms with its products against {:.3g} ms apart{}",
          name.empty() ? "a norm" : name,
          is_taken ? "applied by its products" : "apart from its products", 1e3 * together,
          1e3 * apart,
          is_taken == (together <= apart) ? "" : "; for its bytes, or as a plan has it"));
    return is_taken;
  }
  // By the planner; nothing: prices say.
  std::optional<bool> is_asked_for(std::string_view name) const {
    if (context_.options.only_norms != nullptr && !name.empty())
      return context_.options.only_norms->contains(name);
    return context_.options.norms_in_products ? std::optional(true) : std::nullopt;
  }

  // The value of the norm becomes its statistics, under the same name: what the backward keeps of
  // the norm, or computes again.
  void become_statistics(Node& node, const RowNorm& norm) {
    node.op = context_.find_op(norm.has_sum ? "add_norm_statistics" : "norm_statistics");
    ANABATIC_CHECK(node.op != nullptr, "[fuse_norm_linear] no op for statistics");
    node.attributes[std::string(spec::kNorm)] = std::string(norm.word);
    node.inputs = norm.has_sum ? std::vector{node.inputs[0], node.inputs[2]} : std::vector{norm.x};
    std::vector<TensorType> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(type(input));
    graph_.value(norm.y).type = node.op->infer(inputs, node.attributes).back();
  }

  Graph& graph_;
  const PassContext& context_;
  Readers readers_;
};

bool fuse_norm_linear(Graph& graph, const PassContext& context) {
  return NormLinearFuser(graph, context).run();
}

}  // namespace

const Pass kFuseNormLinear{
    .name = "fuse_norm_linear", .needs = {"precision_chosen"}, .run = fuse_norm_linear};

}  // namespace anabatic::passes
