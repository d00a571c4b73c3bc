// SPDX-License-Identifier: Apache-2.0
#include "passes/join_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ir/rewrite.h"
#include "passes/readers.h"
#include "passes/sparsity/sparse_products.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

constexpr std::string_view kFallback = "fallback";

bool is_grouped(const Node& node) { return ir::product_form(node)->is_grouped; }

bool is_plain(const Node& node, spec::ProductRole role) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->is_plain() && form->role == role;
}

class Joiner {
 public:
  Joiner(Graph& graph, const PassContext& context, std::span<const std::string_view> segments)
      : graph_(graph),
        context_(context),
        segments_(segments),
        readers_(graph),
        keep_(graph.nodes.size(), true) {}

  bool run() {
    std::map<Key, std::vector<std::size_t>> forward, weight_gradients;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!is_in_segments(node)) continue;
      if (is_plain_product(node)) forward[key_of(node)].push_back(i);
      if (is_weight_gradient(node)) weight_gradients[key_of(node)].push_back(i);
    }
    bool changed = false;
    for (auto& [key, members] : forward) changed |= join_forward(members);
    for (auto& [key, members] : weight_gradients) changed |= join_weight_gradients(members);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      if (graph_.nodes[i].op->name == "add") changed |= join_sum(i);
    if (changed) ir::keep_nodes(graph_, keep_);
    return changed;
  }

 private:
  // Equal for products that may be joined: op, x, offsets of groups, layout of the second operand,
  // whether it is quantised, `fallback` of int8 products.
  using Key = std::tuple<std::string_view, ValueId, ValueId, Layout, bool, std::int64_t>;

  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  Key key_of(const Node& node) const {
    return {node.op->name,
            node.inputs[0],
            is_grouped(node) ? node.inputs[2] : ir::kNoValue,
            type(node.inputs[1]).layout,
            type(node.inputs[1]).is_quantized(),
            spec::get_int_or(node.attributes, kFallback, -1)};
  }

  bool is_in_segments(const Node& node) const {
    return std::find(segments_.begin(), segments_.end(), text(node.tag.segment)) != segments_.end();
  }

  // Optional inputs (a bias, a map of rows) are more than a join can carry.
  static bool has_options(const Node& node) {
    return node.inputs.size() > (is_grouped(node) ? 3u : 2u);
  }

  // y has the dtype of x, and no node computes the weight.
  bool is_plain_product(const Node& node) const {
    if (!is_plain(node, spec::ProductRole::kForward) || has_options(node)) return false;
    return type(node.outputs[0]).dtype == type(node.inputs[0]).dtype &&
           graph_.value(node.inputs[1]).producer == ir::kNoNode;
  }

  static bool is_weight_gradient(const Node& node) {
    const bool has_others = node.attributes.size() > node.attributes.count(kFallback);
    return !has_others && is_plain(node, spec::ProductRole::kWeightGradient) && !has_options(node);
  }

  // The op of the same product with several weights.
  const ir::OpSchema* joined_op(const Node& product) const {
    spec::ProductForm form = *ir::product_form(product);
    form.has_several = true;
    return context_.find_product(form);
  }

  // `members` ascend; the joined node takes the place of node `at`.
  void join(const std::vector<std::size_t>& members, std::size_t at) {
    const Node& first = graph_.nodes[members[0]];
    const bool grouped = is_grouped(first);
    Node joined{.op = joined_op(first), .inputs = {first.inputs[0]}, .tag = first.tag};
    if (const auto found = first.attributes.find(kFallback); found != first.attributes.end())
      joined.attributes.insert(*found);
    for (const std::size_t i : members) {
      joined.inputs.push_back(graph_.nodes[i].inputs[1]);
      joined.outputs.push_back(graph_.nodes[i].outputs[0]);
      keep_[i] = false;
    }
    if (grouped) joined.inputs.push_back(first.inputs[2]);
    graph_.nodes[at] = std::move(joined);
    keep_[at] = true;
  }

  void drop_other_tags(std::vector<std::size_t>& members) const {
    const ir::Tag tag = graph_.nodes[members[0]].tag;
    std::erase_if(members, [&](std::size_t i) { return graph_.nodes[i].tag != tag; });
  }

  // In place of the first, before which x and the weights are computed.
  bool join_forward(std::vector<std::size_t>& members) {
    drop_other_tags(members);
    if (members.size() < 2) return false;
    join(members, members.front());
    return true;
  }

  // In place of the last, which every reader must come after. A gradient of several contributions
  // is left out, so that their order stays.
  bool join_weight_gradients(std::vector<std::size_t>& members) {
    drop_other_tags(members);
    const std::size_t last = members.back();
    std::erase_if(members, [&](std::size_t i) {
      const std::span<const ir::NodeId> readers = readers_.of(graph_.nodes[i].outputs[0]);
      return std::any_of(readers.begin(), readers.end(), [&](ir::NodeId reader) {
        const Node& node = graph_.node(reader);
        return index(reader) < last || (node.op->name == "accumulate" && node.inputs.size() != 2);
      });
    });
    if (members.size() < 2) return false;
    join(members, members.back());
    return true;
  }

  // The input gradient that computes `value` for this sum alone, else null.
  const Node* summand(ValueId value, const TensorType& sum) const {
    const ir::NodeId id = graph_.value(value).producer;
    if (id == ir::kNoNode || !readers_.has_only(value, 1)) return nullptr;
    const Node& node = graph_.node(id);
    const spec::ProductForm* form = ir::product_form(node);
    const bool is_product =
        form != nullptr && form->role == spec::ProductRole::kInputGradient && !form->has_activation;
    if (!is_product || !is_in_segments(node) || type(value) != sum ||
        type(node.inputs[0]).dtype != sum.dtype || has_mask(graph_, node.inputs[1]))
      return nullptr;
    return &node;
  }

  // Two input gradients and their sum become one node in place of the sum.
  bool join_sum(std::size_t i) {
    const Node add = graph_.nodes[i];
    const TensorType& sum = type(add.outputs[0]);
    const Node *a = summand(add.inputs[0], sum), *b = summand(add.inputs[1], sum);
    if (a == nullptr || b == nullptr || a == b || a->tag != b->tag) return false;
    const bool grouped = is_grouped(*a);
    if (grouped != is_grouped(*b) || type(a->inputs[1]).layout != type(b->inputs[1]).layout ||
        type(a->inputs[1]).blocks != type(b->inputs[1]).blocks ||
        (grouped && a->inputs.back() != b->inputs.back()))
      return false;
    Node joined{.op = joined_op(*a), .outputs = {add.outputs[0]}, .tag = a->tag};
    for (const Node* part : {a, b})
      joined.inputs.insert(joined.inputs.end(), part->inputs.begin(),
                           part->inputs.end() - (grouped ? 1 : 0));
    if (grouped) joined.inputs.push_back(a->inputs.back());
    for (const ValueId input : add.inputs) keep_[index(graph_.value(input).producer)] = false;
    graph_.nodes[i] = std::move(joined);
    return true;
  }

  Graph& graph_;
  const PassContext& context_;
  std::span<const std::string_view> segments_;
  const Readers readers_;
  std::vector<bool> keep_;  // by node
};

}  // namespace

bool join_products(Graph& graph, const PassContext& context,
                   std::span<const std::string_view> segments) {
  return Joiner(graph, context, segments).run();
}

}  // namespace anabatic::passes
