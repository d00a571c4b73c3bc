// SPDX-License-Identifier: Apache-2.0
#include "passes/move_router_weight.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "ir/rewrite.h"
#include "ops/permute.h"
#include "passes/readers.h"
#include "passes/sparsity/sparse_products.h"
#include "spec/product_bias.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// The nodes of one layer.
struct WeightedLayer {
  NodeId activation, down, combine;
  ValueId row_map;
  struct Backward {
    NodeId combine, activation, weight;
  };
  std::optional<Backward> backward;
};

class Mover {
 public:
  Mover(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), readers_(graph), keep_(graph.nodes.size(), true) {}

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].op->name != "unpermute") continue;
      const std::optional<WeightedLayer> layer = find(NodeId{static_cast<std::uint32_t>(i)});
      if (!layer) continue;
      rewrite(*layer);
      changed = true;
    }
    if (!changed) return false;
    ir::keep_nodes(graph_, keep_);
    ir::sort_nodes(graph_);
    return true;
  }

 private:
  std::string_view op(NodeId id) const { return graph_.node(id).op->name; }
  NodeId producer(ValueId value) const { return graph_.value(value).producer; }
  bool is_made_by(ValueId value, std::string_view name) const {
    return producer(value) != ir::kNoNode && op(producer(value)) == name;
  }

  // By a grouped product with an activation, whether or not it keeps gate and up.
  bool is_made_by_activation(ValueId value) const {
    if (producer(value) == ir::kNoNode) return false;
    const spec::ProductForm* form = ir::product_form(graph_.node(producer(value)));
    return form != nullptr && form->is_grouped && form->has_activation &&
           form->role == spec::ProductRole::kForward && form->keeps != spec::KeptProducts::kInt8;
  }
  static bool is_activation_gradient(const Node& node) {
    const spec::ProductForm* form = ir::product_form(node);
    return form != nullptr && form->has_activation && !form->has_row_weights &&
           form->role == spec::ProductRole::kInputGradient;
  }

  std::optional<WeightedLayer> find(NodeId combine) const {
    const Node& node = graph_.node(combine);
    const ValueId y = node.inputs[0], weights = node.inputs[1], slots = node.inputs[2];
    if (!is_made_by(y, "grouped_linear") || producer(slots) == ir::kNoNode ||
        !ops::is_row_sort(graph_.node(producer(slots))))
      return std::nullopt;
    WeightedLayer layer{.activation = ir::kNoNode,
                        .down = producer(y),
                        .combine = combine,
                        .row_map = graph_.node(producer(slots)).outputs[0],
                        .backward = std::nullopt};
    const Node &sort = graph_.node(producer(slots)), &down = graph_.node(layer.down);
    const ValueId h = down.inputs[0];
    if (slots != sort.outputs[1] || down.inputs.size() != 3 || down.inputs[2] != sort.outputs[2])
      return std::nullopt;
    if (!is_made_by_activation(h)) return std::nullopt;
    layer.activation = producer(h);
    const Node& activation = graph_.node(layer.activation);
    if (activation.outputs[0] != h || !takes_weights(activation, layer, weights))
      return std::nullopt;
    for (const Node* product : {&down, &activation})
      for (const ValueId input : product->inputs)
        if (has_mask(graph_, input)) return std::nullopt;
    const std::size_t num_y = readers_.of(y).size();
    if (num_y == 2) layer.backward = find_backward(layer);
    if (num_y > 2 || (num_y == 2 && !layer.backward)) return std::nullopt;
    const std::size_t count = layer.backward ? 2 : 1;
    if (!readers_.has_only(y, count) || !readers_.has_only(h, count)) return std::nullopt;
    return layer;
  }

  static std::size_t row_map_at(const Node& product) {
    return static_cast<std::size_t>(spec::activation_inputs(product.attributes).row_map());
  }

  // Its inputs but for biases, which come last.
  static std::size_t num_others(const Node& product) {
    return spec::without_biases(product.inputs, product.attributes).size();
  }

  // The product has no weights of rows yet, and these are computed before it, so no cycle arises.
  bool takes_weights(const Node& product, const WeightedLayer& layer, ValueId weights) const {
    const std::size_t row_map = row_map_at(product), count = num_others(product);
    if (count > row_map + 1) return false;
    if (count > row_map && product.inputs[row_map] != layer.row_map) return false;
    const auto is_ahead = [&](ValueId value) {
      return producer(value) == ir::kNoNode || index(producer(value)) < index(layer.activation);
    };
    return is_ahead(weights) && is_ahead(layer.row_map);
  }

  std::optional<WeightedLayer::Backward> find_backward(const WeightedLayer& layer) const {
    const Node &forward = graph_.node(layer.combine), &down = graph_.node(layer.down),
               &activation = graph_.node(layer.activation);
    if (ir::product_form(activation)->keeps != spec::KeptProducts::kWhole) return std::nullopt;
    std::optional<NodeId> combine, gradient, weight;
    for (const NodeId id : readers_.of(forward.inputs[0]))
      if (op(id) == "unpermute_gradient") combine = id;
    if (!combine) return std::nullopt;
    const Node& node = graph_.node(*combine);
    for (std::size_t i = 0; i < 3; ++i)
      if (node.inputs[1 + i] != forward.inputs[i]) return std::nullopt;
    const ValueId dy = node.outputs[0];
    if (!readers_.has_only(dy, 2)) return std::nullopt;
    for (const NodeId id : readers_.of(dy)) {
      const std::vector<ValueId>& inputs = graph_.node(id).inputs;
      if (is_activation_gradient(graph_.node(id)) && inputs[0] == dy &&
          inputs[2] == down.inputs[2] &&
          std::equal(inputs.begin() + 3, inputs.end(), activation.outputs.begin() + 1,
                     activation.outputs.end()))
        gradient = id;
      if (op(id) == "grouped_linear_weight_gradient" && inputs.size() == 3 &&
          inputs[0] == down.inputs[0] && inputs[1] == dy && inputs[2] == down.inputs[2])
        weight = id;
    }
    if (!gradient || !weight) return std::nullopt;
    return WeightedLayer::Backward{.combine = *combine, .activation = *gradient, .weight = *weight};
  }

  const ir::OpSchema* find_op(std::string_view name) const {
    const ir::OpSchema* found = context_.find_op(name);
    ANABATIC_CHECK(found != nullptr, "[move_router_weight] no op '{}'", name);
    return found;
  }

  void rewrite(const WeightedLayer& layer) {
    Node& combine = graph_.node(layer.combine);
    const ValueId weights = combine.inputs[1];
    const std::int64_t top_k = graph_.value(weights).type.dim(1);
    combine.op = find_op("permute_gradient");
    combine.inputs = {combine.inputs[0], combine.inputs[2]};
    combine.attributes["top_k"] = top_k;
    Node& activation = graph_.node(layer.activation);
    const std::size_t count = num_others(activation);
    std::vector<ValueId> added{weights};
    if (count == row_map_at(activation)) added.insert(added.begin(), layer.row_map);
    activation.inputs.insert(activation.inputs.begin() + static_cast<std::ptrdiff_t>(count),
                             added.begin(), added.end());
    if (!layer.backward) return;

    const Node& last = graph_.node(layer.backward->combine);
    const ValueId dout = last.inputs[0];
    Node& gradient = graph_.node(layer.backward->activation);
    spec::ProductForm form = *ir::product_form(gradient);
    form.has_row_weights = true;
    gradient.op = context_.find_product(form);
    gradient.inputs[0] = dout;
    gradient.inputs.insert(gradient.inputs.end(), {layer.row_map, weights});
    gradient.outputs.push_back(last.outputs[1]);
    Node& weight = graph_.node(layer.backward->weight);
    weight.inputs[1] = dout;
    weight.inputs.push_back(layer.row_map);
    weight.attributes["gathered"] = std::string("dy");
    weight.attributes["top_k"] = top_k;
    keep_[index(layer.backward->combine)] = false;
  }

  Graph& graph_;
  const PassContext& context_;
  Readers readers_;
  std::vector<bool> keep_;  // by node
};

bool move_router_weight(Graph& graph, const PassContext& context) {
  return Mover(graph, context).run();
}

}  // namespace

const Pass kMoveRouterWeight{
    .name = "move_router_weight", .needs = {"precision_chosen"}, .run = move_router_weight};

}  // namespace anabatic::passes
