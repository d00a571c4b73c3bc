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
#include "spec/product_norm.h"

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

  bool run() {
    bool changed = false;
    for (Node& node : graph_.nodes) changed |= fuse(node);
    return changed;
  }

 private:
  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  // Whether the node can apply a norm to its operand y, which is nothing else of it.
  bool takes(const Node& node, ValueId y) const {
    const spec::ProductForm* form = ir::product_form(node);
    if (form == nullptr || form->is_grouped || form->role == spec::ProductRole::kInputGradient)
      return false;
    if (node.inputs[0] != y || std::count(node.inputs.begin(), node.inputs.end(), y) != 1)
      return false;
    if (node.attributes.contains(spec::kNorm)) return false;
    // The other operand: gradients may be f16 next to bf16.
    return type(node.inputs[1]).value_dtype() == type(y).dtype;
  }

  bool fuse(Node& node) {
    const std::optional<RowNorm> norm = analysis::row_norm_of(graph_, node);
    if (!norm || readers_.is_wanted(norm->y)) return false;
    const std::span<const NodeId> readers = readers_.of(norm->y);
    const bool all_take = std::all_of(readers.begin(), readers.end(),
                                      [&](NodeId id) { return takes(graph_.node(id), norm->y); });
    const bool is_saved = std::any_of(readers.begin(), readers.end(), [&](NodeId id) {
      return graph_.node(id).tag.phase != ir::Phase::kForward;
    });
    if (!all_take || !is_saved) return false;
    const double apart = seconds(node, readers);
    const Node norm_apart = node;
    const TensorType y = type(norm->y);
    std::vector<Node> products_apart;
    for (const NodeId id : readers) {
      Node& product = graph_.node(id);
      products_apart.push_back(product);
      product.attributes[std::string(spec::kNorm)] = std::string(norm->word);
      product.inputs[0] = norm->x;
      product.inputs.push_back(norm->y);
      product.inputs.insert(product.inputs.end(), norm->parameters.begin(), norm->parameters.end());
    }
    become_statistics(node, *norm);
    const double together = seconds(node, readers);
    const bool is_taken = is_asked_for(*norm).value_or(together <= apart);
    explain(*norm, is_taken, together, apart);
    if (is_taken) return true;
    node = norm_apart;
    graph_.value(norm->y).type = y;
    for (std::size_t i = 0; i < readers.size(); ++i)
      graph_.node(readers[i]) = std::move(products_apart[i]);
    return false;
  }

  // By the planner; nothing: prices say.
  std::optional<bool> is_asked_for(const RowNorm& norm) const {
    const Name name = graph_.value(norm.y).name;
    if (context_.options.only_norms != nullptr && name != Name{})
      return context_.options.only_norms->contains(text(name));
    return context_.options.norms_in_products ? std::optional(true) : std::nullopt;
  }

  // What the norm and the products that read it take; 0 where there are no prices.
  double seconds(const Node& norm, std::span<const NodeId> readers) const {
    if (context_.seconds == nullptr) return 0;
    double sum = context_.seconds(graph_, norm);
    for (const NodeId id : readers) sum += context_.seconds(graph_, graph_.node(id));
    return sum;
  }

  void explain(const RowNorm& norm, bool is_taken, double together, double apart) const {
    if (context_.options.explanation == nullptr) return;
    const Name name = graph_.value(norm.y).name;
    context_.options.explanation->push_back(
        fmt::format("{}: {}: {:.3g} ms with its products against {:.3g} ms apart{}",
                    name == Name{} ? std::string_view("a norm") : text(name),
                    is_taken ? "applied by its products" : "apart from its products",
                    1e3 * together, 1e3 * apart,
                    is_taken == (together <= apart) ? "" : "; for its bytes, or as a plan has it"));
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
  const Readers readers_;
};

bool fuse_norm_linear(Graph& graph, const PassContext& context) {
  return NormLinearFuser(graph, context).run();
}

}  // namespace

const Pass kFuseNormLinear{
    .name = "fuse_norm_linear", .needs = {"precision_chosen"}, .run = fuse_norm_linear};

}  // namespace anabatic::passes
