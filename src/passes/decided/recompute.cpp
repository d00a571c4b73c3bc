// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/recompute.h"

#include <algorithm>
#include <utility>

#include "analysis/rebuild.h"
#include "analysis/saved_form.h"
#include "ir/rewrite.h"
#include "spec/product.h"

namespace anabatic::passes {
namespace {

using analysis::Rebuild;
using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

analysis::Treatments treatments_of(const Graph& graph, const analysis::Rebuilder& rebuilder,
                                   const spec::Decisions& decisions) {
  analysis::Treatments treatments(graph);
  for (const analysis::SavedValue& saved : rebuilder.saved()) {
    treatments.is_dropped[index(saved.value)] = decisions.recompute.contains(saved.key);
    if (const auto found = decisions.saved_as.find(saved.key); found != decisions.saved_as.end())
      treatments.form[index(saved.value)] = found->second;
  }
  return treatments;
}

// By value: inputs of nodes and outputs of the graph that it is.
std::vector<int> count_readers(const Graph& graph) {
  std::vector<int> num_readers(graph.values.size(), 0);
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs) ++num_readers[index(input)];
  for (const ValueId output : graph.outputs) ++num_readers[index(output)];
  return num_readers;
}

// The op of one that keeps its products, where it keeps them otherwise or not at all.
const ir::OpSchema* that_keeps(const Node& node, spec::KeptProducts keeps,
                               const PassContext& context) {
  spec::ProductForm form = *ir::product_form(node);
  form.keeps = keeps;
  return context.find_product(form);
}

// Without gate and up among its outputs, where nobody reads them.
void stop_keeping_products(Graph& graph, const PassContext& context) {
  const std::vector<int> num_readers = count_readers(graph);
  for (Node& node : graph.nodes) {
    if (node.tag.phase != ir::Phase::kForward || !analysis::keeps_products(node)) continue;
    if (std::any_of(node.outputs.begin() + 1, node.outputs.end(),
                    [&](ValueId product) { return num_readers[index(product)] > 0; }))
      continue;
    node.op = that_keeps(node, spec::KeptProducts::kNone, context);
    node.outputs.resize(1);
  }
}

// A product of whose gate and up codes are kept, or those of one and nothing of the other, leaves
// both as codes: neither ever stands whole.
void leave_products_in_codes(Graph& graph, const PassContext& context) {
  const std::vector<int> num_readers = count_readers(graph);
  std::vector<NodeId> quantized_by(graph.values.size(), ir::kNoNode);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].op->name == "quantize")
      quantized_by[index(graph.nodes[i].inputs[0])] = NodeId{static_cast<std::uint32_t>(i)};
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (node.tag.phase != ir::Phase::kForward || !analysis::keeps_products(node)) continue;
    const std::vector<ValueId> products(node.outputs.begin() + 1, node.outputs.end());
    NodeId one = ir::kNoNode;
    bool are_read_as_codes = true;
    for (const ValueId product : products) {
      const NodeId by = quantized_by[index(product)];
      are_read_as_codes &= num_readers[index(product)] == (by != ir::kNoNode ? 1 : 0);
      if (one == ir::kNoNode) one = by;
    }
    if (one == ir::kNoNode || !are_read_as_codes) continue;
    const Node quantize = graph.node(one);
    std::vector<ValueId> outputs{node.outputs[0]};
    for (const ValueId product : products) {
      const NodeId by = quantized_by[index(product)];
      for (std::size_t o = 0; o < quantize.outputs.size(); ++o)
        outputs.push_back(by != ir::kNoNode
                              ? graph.node(by).outputs[o]
                              : graph.add_value(graph.value(quantize.outputs[o]).type, {},
                                                NodeId{static_cast<std::uint32_t>(i)}));
      if (by != ir::kNoNode) keep[index(by)] = false;
    }
    node.op = that_keeps(node, spec::KeptProducts::kInt8, context);
    node.attributes["block"] = quantize.attributes.at("block");
    node.outputs = std::move(outputs);
  }
  ir::keep_nodes(graph, keep);
}

spec::ActivationGradientInputs inputs_of(const Node& gradient) {
  return spec::activation_gradient_inputs(gradient.attributes,
                                          ir::product_form(gradient)->is_grouped);
}
std::size_t gate_at(const Node& gradient) {
  return static_cast<std::size_t>(inputs_of(gradient).operand(0));
}

// An activation made again from gate and up for weight-gradients alone comes out of the gradient
// that reads them anyway: a pass over both is saved, and it takes the bytes that it took before.
// What else reads it may lead to that gradient.
void make_activations_with_gradients(Graph& graph) {
  std::vector<NodeId> gradient_of(graph.values.size(), ir::kNoNode);  // by gate
  std::vector<bool> has_other_readers(graph.values.size(), false);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (analysis::is_activation_gradient(node))
      gradient_of[index(node.inputs[gate_at(node)])] = NodeId{static_cast<std::uint32_t>(i)};
    for (const ValueId input : node.inputs)
      if (node.tag.phase != ir::Phase::kBackwardWeight) has_other_readers[index(input)] = true;
  }
  std::vector<bool> keep(graph.nodes.size(), true);
  bool any = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& activation = graph.nodes[i];
    if (activation.op->name != "activation" || activation.tag.phase != ir::Phase::kRecompute)
      continue;
    const NodeId id = gradient_of[index(activation.inputs[0])];
    if (id == ir::kNoNode || has_other_readers[index(activation.outputs[0])]) continue;
    Node& gradient = graph.nodes[index(id)];
    // gate, up, and the weights of rows where both have them.
    const std::vector<ValueId> read(
        gradient.inputs.begin() + static_cast<std::ptrdiff_t>(gate_at(gradient)),
        gradient.inputs.end());
    if (read != activation.inputs || gradient.attributes.contains("with_activation") ||
        spec::activation_of(gradient.attributes) != spec::activation_of(activation.attributes))
      continue;
    gradient.attributes["with_activation"] = true;
    gradient.outputs.push_back(activation.outputs[0]);
    graph.value(activation.outputs[0]).producer = id;
    keep[i] = false;
    any = true;
  }
  if (!any) return;
  ir::keep_nodes(graph, keep);
  ir::sort_nodes(graph);
}

// A gradient behind a product reads codes of gate and up as they wait, where nothing else reads
// them whole. Not the first one, see `first_activation_gradient`; the others come when a layer's
// codes are gone.
void read_codes(Graph& graph) {
  const std::vector<int> num_readers = count_readers(graph);
  const NodeId first = analysis::first_activation_gradient(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (!analysis::is_activation_gradient(node) || i == index(first)) continue;
    const spec::ActivationGradientInputs at = inputs_of(node);
    if (at.is_quantized) continue;
    const auto gate = node.inputs.begin() + at.operand(0), end = gate + at.num_operands;
    const auto producer = [&](ValueId value) { return graph.value(value).producer; };
    const bool reads_them = std::all_of(gate, end, [&](ValueId value) {
      return producer(value) != ir::kNoNode &&
             graph.node(producer(value)).op->name == "dequantize" && num_readers[index(value)] == 1;
    });
    if (!reads_them) continue;
    node.attributes["block"] = graph.node(producer(*gate)).attributes.at("block");
    std::vector<ValueId> codes;
    for (auto operand = gate; operand != end; ++operand) {
      const Node& dequantize = graph.node(producer(*operand));
      codes.insert(codes.end(), dequantize.inputs.begin(), dequantize.inputs.end());
      keep[index(producer(*operand))] = false;
    }
    node.inputs.insert(node.inputs.erase(gate, end), codes.begin(), codes.end());
  }
  ir::keep_nodes(graph, keep);
}

// Builds the nodes anew, with those that convert and make again among them.
class Rewriter {
 public:
  Rewriter(Graph& graph, const PassContext& context, const std::vector<Rebuild>& rebuilds)
      : graph_(graph),
        rebuilds_(rebuilds),
        nodes_(std::exchange(graph.nodes, {})),
        builder_(graph, context.find_op),
        made_(graph.values.size(), ir::kNoValue),
        waiting_(graph.values.size()) {}

  void run(const analysis::Treatments& treatments) {
    std::vector<std::vector<const Rebuild*>> behind = converted_behind();
    auto next = rebuilds_.begin();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (; next != rebuilds_.end() && index(next->before) == i; ++next) add(*next);
      Node& node = nodes_[i];
      if (node.tag.phase != ir::Phase::kForward && node.tag.phase != ir::Phase::kUpdate)
        for (ValueId& input : node.inputs)
          if (!treatments.is_kept(input)) input = made_[index(input)];
      graph_.nodes.push_back(node);
      for (const Rebuild* rebuild : behind[i]) convert(*rebuild);
    }
  }

 private:
  // By node: what takes its form behind it, the last of the forward to use the value.
  std::vector<std::vector<const Rebuild*>> converted_behind() const {
    std::vector<std::size_t> last_use(made_.size(), 0);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].tag.phase != ir::Phase::kForward) continue;
      for (const auto* list : {&nodes_[i].inputs, &nodes_[i].outputs})
        for (const ValueId value : *list) last_use[index(value)] = i;
    }
    std::vector<std::vector<const Rebuild*>> behind(nodes_.size());
    for (const Rebuild& rebuild : rebuilds_)
      if (rebuild.from != spec::SavedForm::kWhole)
        behind[last_use[index(rebuild.outputs[0])]].push_back(&rebuild);
    return behind;
  }

  void set_tag(const Rebuild& rebuild, ir::Phase phase) {
    ir::Tag tag = nodes_[index(rebuild.of)].tag;
    tag.phase = phase;
    builder_.set_tag(tag);
  }

  void convert(const Rebuild& rebuild) {
    set_tag(rebuild, ir::Phase::kForward);
    const ValueId value = rebuild.outputs[0];
    const analysis::Conversion to = analysis::conversion_to(rebuild.from);
    waiting_[index(value)] =
        to.op.empty() ? std::vector{value} : builder_.add(to.op, {value}, to.attributes);
  }

  std::vector<ValueId> again(const Rebuild& rebuild) {
    if (rebuild.from != spec::SavedForm::kWhole) {
      const ValueId value = rebuild.outputs[0];
      const analysis::Conversion back =
          analysis::conversion_from(rebuild.from, graph_.value(value).type.dtype);
      return builder_.add(back.op, waiting_[index(value)], back.attributes);
    }
    std::vector<ValueId> inputs;
    for (const ValueId input : rebuild.inputs)
      inputs.push_back(made_[index(input)] == ir::kNoValue ? input : made_[index(input)]);
    return builder_.add(rebuild.op, inputs,
                        analysis::attributes_of(rebuild, nodes_[index(rebuild.of)]));
  }

  void add(const Rebuild& rebuild) {
    set_tag(rebuild, ir::Phase::kRecompute);
    const std::vector<ValueId> outputs = again(rebuild);
    for (std::size_t o = 0; o < outputs.size(); ++o)
      if (ValueId& value = made_[index(rebuild.outputs[o])]; value == ir::kNoValue)
        value = outputs[o];
  }

  Graph& graph_;
  const std::vector<Rebuild>& rebuilds_;
  std::vector<Node> nodes_;
  ir::GraphBuilder builder_;
  std::vector<ValueId> made_;                  // by forward value: what stands for it
  std::vector<std::vector<ValueId>> waiting_;  // by forward value: the form it waits in
};

bool run(Graph& graph, const PassContext& context) {
  if (context.options.decisions == nullptr) return false;
  const analysis::Rebuilder rebuilder(graph);
  const analysis::Treatments treatments =
      treatments_of(graph, rebuilder, *context.options.decisions);
  const std::vector<Rebuild> rebuilds = rebuilder.rebuilds(treatments);
  if (rebuilds.empty()) return false;
  Rewriter(graph, context, rebuilds).run(treatments);
  stop_keeping_products(graph, context);
  leave_products_in_codes(graph, context);
  make_activations_with_gradients(graph);
  read_codes(graph);
  return true;
}

}  // namespace

const Pass kRecompute{
    .name = "recompute", .needs = {"differentiated"}, .required = true, .run = run};

}  // namespace anabatic::passes
