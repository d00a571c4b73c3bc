// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_head_loss.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ir/rewrite.h"
#include "passes/differentiate.h"
#include "spec/head_inputs.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

class HeadLossFuser {
 public:
  HeadLossFuser(Graph& graph, const PassContext& context)
      : graph_(graph),
        context_(context),
        readers_(graph.values.size()),
        is_output_(graph.values.size(), false),
        keep_(graph.nodes.size(), true) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      for (const ValueId input : graph.nodes[i].inputs) {
        std::vector<NodeId>& list = readers_[index(input)];
        const NodeId id{static_cast<std::uint32_t>(i)};
        if (list.empty() || list.back() != id) list.push_back(id);
      }
    for (const ValueId output : graph.outputs) is_output_[index(output)] = true;
    for (const ir::State& state : graph.states) is_output_[index(state.after)] = true;
  }

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      if (const NodeId id{static_cast<std::uint32_t>(i)};
          graph_.node(id).op->name == "cross_entropy")
        changed |= fuse(id);
      else if (graph_.node(id).op->name == "label_log_probabilities")
        changed |= fuse_log_probabilities(id);
    if (changed) ir::keep_nodes(graph_, keep_);
    return changed;
  }

 private:
  // The gradient of the loss: a number, times the step input of a scaled loss.
  struct Seed {
    double factor = 1;
    std::optional<ValueId> loss_scale{};
  };

  // The gradients' part of the match.
  struct Backward {
    NodeId loss_gradient, input_gradient;
    std::optional<NodeId> weight_gradient;
    std::optional<NodeId> cast;
    Seed dloss;
  };

  const Node* producer(ValueId value, std::string_view op) const {
    const NodeId id = graph_.value(value).producer;
    return id != ir::kNoNode && graph_.node(id).op->name == op ? &graph_.node(id) : nullptr;
  }

  // The seed, times what the loss weighs in the objective.
  std::optional<Seed> seed_of(ValueId value) const {
    Seed seed;
    for (const Node* scale; (scale = producer(value, "scale")) != nullptr; value = scale->inputs[0])
      seed.factor *= spec::get_double(scale->attributes, "factor");
    if (value == find_loss_scale(graph_)) {
      seed.loss_scale = value;
      return seed;
    }
    const Node* fill = producer(value, "fill");
    if (fill == nullptr) return std::nullopt;
    seed.factor *= spec::get_double(fill->attributes, "value");
    return seed;
  }

  // Nobody beyond the nodes that go reads the value.
  bool is_read_by(ValueId value, std::size_t num_readers) const {
    return !is_output_[index(value)] && readers_[index(value)].size() == num_readers;
  }

  bool fuse(NodeId id) {
    const Node loss = graph_.node(id);
    const ValueId logits = loss.inputs[0], lse = loss.outputs[1];
    const Node* head = producer(logits, "linear");
    if (head == nullptr || head->inputs.size() != 2) return false;
    const bool has_gradient = readers_[index(logits)].size() > 1;
    const std::optional<Backward> backward =
        has_gradient ? find_backward(*head, loss) : std::nullopt;
    if (has_gradient != backward.has_value()) return false;
    if (!is_read_by(logits, has_gradient ? 2 : 1) || !is_read_by(lse, has_gradient ? 1 : 0))
      return false;

    // Nobody reads that of a frozen head.
    const bool has_weight_gradient =
        backward && backward->weight_gradient &&
        !is_read_by(graph_.node(*backward->weight_gradient).outputs[0], 0);
    const char* op = !backward             ? "head_loss"
                     : has_weight_gradient ? "head_loss_with_gradient"
                                           : "head_loss_with_input_gradient";
    Node fused{.op = context_.find_op(op),
               .inputs = {head->inputs[0], head->inputs[1]},
               .outputs = {loss.outputs[0]},
               .tag = head->tag};
    fused.inputs.insert(fused.inputs.end(), loss.inputs.begin() + 1, loss.inputs.end());
    ANABATIC_CHECK(fused.op != nullptr, "[fuse_head_loss] no op '{}'", op);
    keep_[index(graph_.value(logits).producer)] = false;
    if (backward) {
      fused.attributes["dloss"] = backward->dloss.factor;
      if (backward->dloss.loss_scale) {
        fused.attributes["loss_scaled"] = true;
        fused.inputs.insert(fused.inputs.begin() + spec::kHeadLossScaleInput,
                            *backward->dloss.loss_scale);
      }
      const ValueId dx = graph_.node(backward->input_gradient).outputs[0];
      if (const DType dtype = graph_.value(dx).type.dtype;
          dtype != graph_.value(head->inputs[0]).type.dtype)
        fused.attributes["dx_dtype"] = std::string(to_string(dtype));
      fused.outputs.push_back(dx);
      if (has_weight_gradient)
        fused.outputs.push_back(graph_.node(*backward->weight_gradient).outputs[0]);
      keep_[index(backward->input_gradient)] = false;
      if (backward->weight_gradient) keep_[index(*backward->weight_gradient)] = false;
      keep_[index(backward->loss_gradient)] = false;
      if (backward->cast) keep_[index(*backward->cast)] = false;
    }
    // In place of the loss: its inputs are made by then, and it is made before all that read it.
    graph_.node(id) = std::move(fused);
    return true;
  }

  bool fuse_log_probabilities(NodeId id) {
    const Node rows = graph_.node(id);
    const ValueId logits = rows.inputs[0];
    const Node* head = producer(logits, "linear");
    if (head == nullptr || head->inputs.size() != 2) return false;
    const bool is_alone = is_read_by(logits, 1);
    if (!is_alone && !is_read_by_loss(logits)) return false;
    Node fused{.op = context_.find_op("head_log_probabilities"),
               .inputs = {head->inputs[0], head->inputs[1], rows.inputs[1]},
               .outputs = rows.outputs,
               .tag = head->tag};
    ANABATIC_CHECK(fused.op != nullptr, "[fuse_head_loss] no op 'head_log_probabilities'");
    if (is_alone) keep_[index(graph_.value(logits).producer)] = false;
    graph_.node(id) = std::move(fused);
    std::erase(readers_[index(logits)], id);
    return true;
  }

  // A loss of preferences reads the logits again, with the weights that follow from the
  // log-probabilities.
  bool is_read_by_loss(ValueId logits) const {
    return !is_output_[index(logits)] &&
           std::ranges::any_of(readers_[index(logits)], [&](NodeId reader) {
             return graph_.node(reader).op->name == "cross_entropy";
           });
  }

  // As the op gives it: of the dtype of x, or f16 where that is bf16.
  static bool is_gradient_of(TensorType dx, const TensorType& x) {
    if (x.dtype == DType::kBFloat16 && dx.dtype == DType::kFloat16) dx.dtype = x.dtype;
    return dx == x;
  }

  std::optional<Backward> find_backward(const Node& head, const Node& loss) const {
    Backward found;
    // Logits, labels, scale, then the loss's lse and dloss, then weights where there are any.
    const auto reads_loss = [&](NodeId id) {
      const Node& node = graph_.node(id);
      if (node.op->name != "cross_entropy_gradient" ||
          node.inputs.size() != loss.inputs.size() + 2 || node.inputs[3] != loss.outputs[1])
        return false;
      std::vector<ValueId> of_loss = node.inputs;
      of_loss.erase(of_loss.begin() + 3, of_loss.begin() + 5);
      return of_loss == loss.inputs;
    };
    const std::vector<NodeId>& readers = readers_[index(loss.inputs[0])];
    const auto gradient = std::find_if(readers.begin(), readers.end(), reads_loss);
    if (gradient == readers.end()) return std::nullopt;
    found.loss_gradient = *gradient;
    const std::optional<Seed> dloss = seed_of(graph_.node(*gradient).inputs[4]);
    if (!dloss) return std::nullopt;
    found.dloss = *dloss;

    ValueId dlogits = graph_.node(*gradient).outputs[0];
    if (const std::vector<NodeId>& next = readers_[index(dlogits)];
        next.size() == 1 && graph_.node(next[0]).op->name == "cast") {
      if (!is_read_by(dlogits, 1)) return std::nullopt;
      found.cast = next[0];
      dlogits = graph_.node(next[0]).outputs[0];
    }
    return find_products(head, dlogits, found) ? std::optional(found) : std::nullopt;
  }

  bool find_products(const Node& head, ValueId dlogits, Backward& found) const {
    const ValueId x = head.inputs[0], weight = head.inputs[1];
    bool has_input = false;
    for (const NodeId id : readers_[index(dlogits)]) {
      const Node& node = graph_.node(id);
      if (node.op->name == "linear_input_gradient" && node.inputs[1] == weight &&
          is_gradient_of(graph_.value(node.outputs[0]).type, graph_.value(x).type)) {
        found.input_gradient = id;
        has_input = true;
      } else if (node.op->name == "linear_weight_gradient" && node.inputs[0] == x) {
        found.weight_gradient = id;
      }
    }
    return has_input && is_read_by(dlogits, found.weight_gradient ? 2 : 1);
  }

  Graph& graph_;
  const PassContext& context_;
  std::vector<std::vector<NodeId>> readers_;  // by value
  std::vector<bool> is_output_;               // by value; ends of states too
  std::vector<bool> keep_;                    // by node
};

bool fuse_head_loss(Graph& graph, const PassContext& context) {
  return HeadLossFuser(graph, context).run();
}

}  // namespace

const Pass kFuseHeadLoss{
    .name = "fuse_head_loss", .needs = {"precision_chosen"}, .run = fuse_head_loss};

}  // namespace anabatic::passes
