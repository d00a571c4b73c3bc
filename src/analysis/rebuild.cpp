// SPDX-License-Identifier: Apache-2.0
#include "analysis/rebuild.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ir/op_schema.h"
#include "ops/ranks/exchange.h"
#include "spec/product_bias.h"
#include "spec/product_prologue.h"

namespace anabatic::analysis {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool is_backward(ir::Phase phase) {
  return phase != ir::Phase::kForward && phase != ir::Phase::kUpdate;
}

std::string key_of(const Graph& graph, ValueId value) {
  if (const std::string_view name = text(graph.value(value).name); !name.empty())
    return std::string(name);
  const Node& node = graph.node(graph.value(value).producer);
  std::string key = node.tag.layer >= 0 ? fmt::format("layers.{}.", node.tag.layer) : "";
  if (const std::string_view segment = text(node.tag.segment); !segment.empty())
    key += fmt::format("{}.", segment);
  key += node.op->name;
  const auto output = std::find(node.outputs.begin(), node.outputs.end(), value);
  return node.outputs.size() == 1 ? key : fmt::format("{}:{}", key, output - node.outputs.begin());
}

// Rotates queries and keys without a norm.
bool is_plain_pair(const Node& node) {
  return node.op->name == "rope_pair" && node.inputs.size() == 3;
}

// Several dense products of one x, which can be recomputed one by one.
bool is_joined(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->has_several && !form->is_grouped &&
         form->role == spec::ProductRole::kForward;
}

// The form of one of the products that a forward node computes.
const spec::ProductForm& plain_form(const Node& node) {
  return spec::product_like({.op = node.op->name,
                             .role = spec::ProductRole::kForward,
                             .is_grouped = ir::product_form(node)->is_grouped});
}

constexpr std::size_t kActivation = 0, kFirstProduct = 1;  // outputs, where keeps_products()

class Collector {
 public:
  Collector(const Graph& graph, const Rebuilder& rebuilder, const Treatments& treatments)
      : graph_(graph),
        rebuilder_(rebuilder),
        treatments_(treatments),
        is_made_(graph.values.size(), false) {}

  void require(ValueId value, NodeId reader) {
    if (is_made_[index(value)] || is_available(value)) return;
    Rebuild rebuild = recipe(value);
    rebuild.before = reader;
    for (const ValueId input : rebuild.inputs) require(input, reader);
    for (const ValueId output : rebuild.outputs) is_made_[index(output)] = true;
    result_.push_back(std::move(rebuild));
  }

  std::vector<Rebuild> take() { return std::move(result_); }

 private:
  bool is_available(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    const bool is_exchanged = producer != ir::kNoNode && ops::is_exchange(graph_.node(producer));
    return producer == ir::kNoNode ||
           ((is_exchanged || rebuilder_.is_saved(value)) && treatments_.is_kept(value));
  }

  Rebuild recipe(ValueId value) const {
    const NodeId id = graph_.value(value).producer;
    const Node& node = graph_.node(id);
    if (treatments_.waits_in_form(value))
      return {.outputs = {value}, .of = id, .from = treatments_.form[index(value)]};
    // The norm alone, where the sum is available.
    if (node.op->name == "add_rms_norm" && value == node.outputs[1] && has(node.outputs[0]))
      return {.op = "rms_norm",
              .attributes = TakenAttributes::kAll,
              .inputs = {node.outputs[0], node.inputs[1]},
              .outputs = {value},
              .of = id};
    // Likewise what a norm takes of the sum.
    if (node.op->name == "add_norm_statistics" && value == node.outputs[1] && has(node.outputs[0]))
      return {.op = "norm_statistics",
              .attributes = TakenAttributes::kAll,
              .inputs = {node.outputs[0]},
              .outputs = {value},
              .of = id};
    if (is_joined(node)) return products(id, node, value);
    if (is_plain_pair(node) && !is_wanted(node.outputs[value == node.outputs[0]])) {
      const std::size_t which = value == node.outputs[1];
      return {.op = "rope",
              .attributes = TakenAttributes::kAll,
              .inputs = {node.inputs[which], node.inputs[2]},
              .outputs = {value},
              .of = id};
    }
    // Each product alone: a gradient mostly computes the activation (activation_with_gradient).
    if (keeps_products(node))
      return value == node.outputs[kActivation] ? activation(id, node) : product(id, node, value);
    return {.op = node.op->name,
            .attributes = TakenAttributes::kAll,
            .inputs = node.inputs,
            .outputs = node.outputs,
            .of = id};
  }

  // Saved in any form, or recomputed already.
  bool has(ValueId value) const {
    return is_made_[index(value)] || is_available(value) || treatments_.waits_in_form(value);
  }

  bool is_wanted(ValueId value) const { return rebuilder_.is_saved(value) && !has(value); }

  // Whether the value is wanted, or read by a node whose output is.
  bool leads_to_wanted(ValueId value) const {
    if (rebuilder_.is_saved(value)) return is_wanted(value);
    for (const NodeId id : rebuilder_.forward_readers(value)) {
      const Node& reader = graph_.node(id);
      for (std::size_t i = 0; i < reader.outputs.size(); ++i)
        if (is_wanted(reader.outputs[i]) && (!is_plain_pair(reader) || reader.inputs[i] == value))
          return true;
    }
    return false;
  }

  // The products of one x that lead to wanted values: keys and values without queries.
  Rebuild products(NodeId id, const Node& node, ValueId value) const {
    Rebuild rebuild{.op = node.op->name,
                    .attributes = TakenAttributes::kAll,
                    .inputs = {node.inputs[0]},
                    .of = id};
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      if (output != value && (is_made_[index(output)] || !leads_to_wanted(output))) continue;
      rebuild.inputs.push_back(node.inputs[i + 1]);
      rebuild.outputs.push_back(output);
    }
    if (rebuild.outputs.size() == 1) rebuild.op = plain_form(node).op;
    add_prologue(node, rebuild);
    return rebuild;
  }

  // The inputs of the norm and the dropout that the product applies to x, last.
  static void add_prologue(const Node& node, Rebuild& rebuild) {
    const auto prologue = spec::prologue_inputs(node.inputs, node.attributes);
    rebuild.inputs.insert(rebuild.inputs.end(), prologue.begin(), prologue.end());
  }

  static Rebuild activation(NodeId id, const Node& node) {
    const spec::ActivationInputs at = spec::activation_inputs(node.attributes);
    Rebuild rebuild{.op = "activation",
                    .attributes = TakenAttributes::kOfActivation,
                    .inputs = {node.outputs.begin() + kFirstProduct, node.outputs.end()},
                    .outputs = {node.outputs[kActivation]},
                    .of = id};
    if (const auto weights = static_cast<std::size_t>(at.row_weights());
        spec::without_prologue(spec::without_biases(node.inputs, node.attributes), node.attributes)
            .size() > weights)
      rebuild.inputs.insert(rebuild.inputs.end(), {node.inputs[weights - 1], node.inputs[weights]});
    return rebuild;
  }

  static Rebuild product(NodeId id, const Node& node, ValueId value) {
    const spec::ActivationInputs at = spec::activation_inputs(node.attributes);
    const auto which = std::find(node.outputs.begin() + kFirstProduct, node.outputs.end(), value) -
                       node.outputs.begin() - static_cast<std::ptrdiff_t>(kFirstProduct);
    const auto input = [&](int i) { return node.inputs[static_cast<std::size_t>(i)]; };
    Rebuild rebuild{.op = plain_form(node).op,
                    .attributes = TakenAttributes::kOfProduct,
                    .inputs = {input(at.x()), input(at.weight(static_cast<int>(which)))},
                    .outputs = {value},
                    .of = id};
    if (!ir::product_form(node)->is_grouped) {
      add_prologue(node, rebuild);
      return rebuild;
    }
    rebuild.inputs.push_back(input(at.offsets()));
    if (node.attributes.contains("top_k")) rebuild.inputs.push_back(input(at.row_map()));
    if (const auto biases = spec::biases_of(node.inputs, node.attributes); !biases.empty())
      rebuild.inputs.push_back(biases[static_cast<std::size_t>(which)]);
    return rebuild;
  }

  const Graph& graph_;
  const Rebuilder& rebuilder_;
  const Treatments& treatments_;
  std::vector<bool> is_made_;  // by value
  std::vector<Rebuild> result_;
};

}  // namespace

spec::Attributes attributes_of(const Rebuild& rebuild, const Node& of) {
  spec::Attributes attributes;
  switch (rebuild.attributes) {
    case TakenAttributes::kNone:
      break;
    case TakenAttributes::kAll:
      return of.attributes;
    case TakenAttributes::kOfActivation:
      spec::copy_activation(of.attributes, attributes);
      break;
    case TakenAttributes::kOfProduct:
      attributes = of.attributes;
      spec::remove_activation(attributes);
      break;
  }
  return attributes;
}

bool keeps_products(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->keeps == spec::KeptProducts::kWhole;
}

bool are_outputs_apart(const Node& node) {
  return node.op->name == "add_rms_norm" || node.op->name == "add_norm_statistics" ||
         is_joined(node) || is_plain_pair(node) || keeps_products(node);
}

bool is_activation_gradient(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->has_activation && form->role == spec::ProductRole::kInputGradient;
}

NodeId first_activation_gradient(const Graph& graph) {
  const auto first = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_activation_gradient);
  return first == graph.nodes.end()
             ? ir::kNoNode
             : NodeId{static_cast<std::uint32_t>(first - graph.nodes.begin())};
}

Rebuilder::Rebuilder(const Graph& graph)
    : graph_(graph),
      is_saved_(graph.values.size(), false),
      forward_readers_(graph.values.size()),
      backward_readers_(graph.values.size()) {
  std::vector<bool> is_output(graph.values.size(), false);
  for (const ValueId output : graph.outputs) is_output[index(output)] = true;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.tag.phase == ir::Phase::kUpdate) continue;
    const NodeId id{static_cast<std::uint32_t>(i)};
    for (const ValueId input : node.inputs) {
      std::vector<NodeId>& readers =
          (is_backward(node.tag.phase) ? backward_readers_ : forward_readers_)[index(input)];
      if (readers.empty() || readers.back() != id) readers.push_back(id);
    }
  }
  std::map<std::string, int> count;
  for (const Node& node : graph.nodes) {
    if (node.tag.phase != ir::Phase::kForward || node.op->can_accumulate) continue;
    for (const ValueId value : node.outputs) {
      if (backward_readers_[index(value)].empty()) continue;
      is_saved_[index(value)] = true;
      if (is_output[index(value)]) continue;
      std::string key = key_of(graph, value);
      if (const int n = count[key]++; n > 0) key += fmt::format("#{}", n);
      saved_.push_back({value, std::move(key), ops::is_exchange(node)});
    }
  }
}

std::vector<Rebuild> Rebuilder::rebuilds(const Treatments& treatments) const {
  std::vector<std::pair<NodeId, ValueId>> reads;
  for (const SavedValue& saved : saved_)
    if (const NodeId first = backward_readers_[index(saved.value)].front();
        !treatments.is_kept(saved.value) && graph_.node(first).op->name != "reload")
      reads.emplace_back(first, saved.value);
  std::sort(reads.begin(), reads.end());
  Collector collector(graph_, *this, treatments);
  for (const auto& [reader, value] : reads) collector.require(value, reader);
  return collector.take();
}

}  // namespace anabatic::analysis
