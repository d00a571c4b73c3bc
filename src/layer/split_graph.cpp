// SPDX-License-Identifier: Apache-2.0
#include "layer/split_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "ir/rewrite.h"
#include "ops/table.h"
#include "passes/derive.h"
#include "passes/differentiate.h"
#include "passes/pass_runner.h"
#include "passes/pipelines.h"
#include "tensor/panels.h"

namespace anabatic::layer {
namespace {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::ValueId;

// Those of a model's training that apply to a layer: nothing lives longer than a call.
constexpr std::string_view kPasses[] = {
    "differentiate",    "fuse_head_loss",          "pack_weights",         "fuse_activation",
    "fuse_moe_permute", "move_router_weight",      "fuse_gate_up",         "fuse_qkv",
    "fuse_rope",        "fuse_norm_residual",      "common_subexpression", "dead_code",
    "recompute",        "activation_with_gradient"};

void run_passes(LayerGraph& layer, bool has_gradients, ir::FindOp find_op) {
  static const std::vector<passes::Pass> all = [] {
    std::vector<passes::Pass> result;
    for (const std::string_view name : kPasses) {
      const passes::Pass* pass = passes::find_pass(name);
      ANABATIC_CHECK(pass != nullptr, "[layer] no pass '{}'", name);
      result.push_back(*pass);
    }
    return result;
  }();
  passes::GradientRequest request{.inputs = layer.wanted_inputs};
  if (!layer.graph.objective) request.outputs = layer.outputs;
  // The activation is recomputed by its gradient, which reads gate and up anyway.
  spec::Decisions decisions;
  decisions.recompute.insert("activation");
  const passes::PassContext context{
      .options = {.with_update = false, .decisions = &decisions, .gradients = &request},
      .find_op = find_op};
  const std::span<const passes::Pass> list(all);
  if (!has_gradients) layer.graph.objective.reset();
  (void)passes::run_passes(layer.graph, has_gradients ? list : list.subspan(1), context,
                           {.facts = {"precision_chosen", "differentiated"}, .checks = false});
}

void renumber_producers(Graph& graph) {
  for (ir::Value& value : graph.values) value.producer = ir::kNoNode;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const ValueId output : graph.nodes[i].outputs)
      graph.value(output).producer = ir::NodeId{static_cast<std::uint32_t>(i)};
}

// The name of a gradient before it is scaled by the seed begins so.
const std::string kUnscaled = "unscaled.";

bool is_forward(const Node& node) { return node.tag.phase == Phase::kForward; }

// Makes an output `gradients.INPUT` of each gradient that the signature asks for, in the dtype of
// the input.
class GradientOutputs {
 public:
  GradientOutputs(LayerGraph& layer, const LayerSignature& signature)
      : layer_(layer),
        graph_(layer.graph),
        signature_(signature),
        builder_(layer.graph, ops::find_op) {}

  void make() {
    separate_weight_gradients();
    const std::vector<ValueId> before = std::exchange(graph_.outputs, {});
    for (const ValueId output : before)
      if (std::ranges::find(layer_.outputs, text(graph_.value(output).name)) !=
          layer_.outputs.end())
        graph_.outputs.push_back(output);
      else
        made_[std::string(text(graph_.value(output).name))] = output;
    for (const auto& [name, value] : made_) graph_.value(value).name = {};
    if (graph_.objective)
      seed_ = builder_.batch_input(passes::seed_name(layer_.outputs.front()),
                                   graph_.value(*graph_.objective).type);
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i)
      if (is_wanted(signature_.inputs[i].name)) make(i);
    graph_.objective.reset();
    ir::sort_nodes(graph_);
  }

 private:
  bool is_wanted(const std::string& name) const {
    return std::ranges::find(signature_.gradients, name) != signature_.gradients.end();
  }

  // A joint op has no place to write rows of one whole.
  void separate_weight_gradients() {
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (Node& node : nodes) {
      const spec::ProductForm* form = ir::product_form(node);
      if (form == nullptr || !form->has_several ||
          form->role != spec::ProductRole::kWeightGradient) {
        graph_.nodes.push_back(std::move(node));
        continue;
      }
      spec::ProductForm single = *form;
      single.has_several = false;
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        Node one{.op = ops::find_op(spec::product_like(single).op),
                 .inputs = {node.inputs[0], node.inputs[1 + i]},
                 .outputs = {node.outputs[i]},
                 .tag = node.tag};
        if (form->is_grouped) one.inputs.push_back(node.inputs.back());
        graph_.nodes.push_back(std::move(one));
      }
    }
    renumber_producers(graph_);
  }

  void make(std::size_t input) {
    const LayerTensor& tensor = signature_.inputs[input];
    ValueId gradient = ir::kNoValue;
    if (const auto found = made_.find(passes::input_gradient_name(tensor.name));
        found != made_.end())
      gradient = found->second;
    for (const WeightPart& part : layer_.parts)
      if (part.input == input) gradient = of_part(part, to_type(tensor), gradient);
    ANABATIC_CHECK(gradient != ir::kNoValue, "[{}] no gradient of {}", signature_.layer,
                   tensor.name);
    gradient = cast(gradient, to_dtype(tensor.dtype));
    if (seed_) {
      graph_.value(gradient).name = intern(kUnscaled + tensor.name);
      gradient = add("scale_by", {gradient, *seed_}, {}, Phase::kBackwardInput, gradient);
    }
    builder_.output(gradient, passes::input_gradient_name(tensor.name));
  }

  // The gradient of the weight up to this part; `before` is that of its earlier parts.
  ValueId of_part(const WeightPart& part, const TensorType& weight, ValueId before) {
    const auto found = made_.find(passes::contribution_name(text(part.state), 0));
    ANABATIC_CHECK(
        found != made_.end() && !made_.contains(passes::contribution_name(text(part.state), 1)),
        "[{}] expected one contribution to the gradient of {}", signature_.layer, text(part.state));
    const ValueId value = found->second;
    Node& node = graph_.node(graph_.value(value).producer);
    const spec::ProductForm* form = ir::product_form(node);
    if (form == nullptr || form->role != spec::ProductRole::kWeightGradient) {
      ANABATIC_CHECK(part.is_whole(), "[{}] {} cannot write rows of {}", signature_.layer,
                     node.op->name, text(part.state));
      return value;
    }
    if (weight.dtype != DType::kFloat32)
      node.attributes["output_dtype"] = std::string(to_string(weight.dtype));
    if (part.is_of_columns()) {
      transpose(node);
      node.attributes["first_column"] = part.first_column;
      node.attributes["column_step"] = part.column_step;
    } else if (!part.is_whole()) {
      node.attributes["first_row"] = part.first_row;
      node.attributes["of_rows"] = part.of_rows;
    }
    if (part.first_row > 0 || part.first_column > 0) node.inputs.push_back(before);
    graph_.value(value).type = weight;
    return value;
  }

  // The transpose of a weight gradient is that of a product whose x and y have changed places.
  static void transpose(Node& node) {
    std::swap(node.inputs[0], node.inputs[1]);
    if (const auto gathered = node.attributes.find("gathered"); gathered != node.attributes.end())
      gathered->second = std::string(std::get<std::string>(gathered->second) == "x" ? "dy" : "x");
  }

  ValueId cast(ValueId value, DType dtype) {
    if (graph_.value(value).type.dtype == dtype) return value;
    const Phase phase = graph_.node(graph_.value(value).producer).tag.phase;
    return add("cast", {value},
               {{"dtype", std::string(to_string(dtype))}, {"rounding", std::string("even")}}, phase,
               value);
  }

  ValueId add(std::string_view op, std::vector<ValueId> inputs, spec::Attributes attributes,
              Phase phase, ValueId like) {
    ir::Tag tag = graph_.node(graph_.value(like).producer).tag;
    tag.phase = phase;
    builder_.set_tag(tag);
    return builder_.add1(op, std::move(inputs), std::move(attributes));
  }

  LayerGraph& layer_;
  Graph& graph_;
  const LayerSignature& signature_;
  ir::GraphBuilder builder_;
  std::map<std::string, ValueId> made_;  // outputs of differentiate, by name
  std::optional<ValueId> seed_;          // where gradients are made in the forward
};

// Cheaper to compute again from the caller's operands than to keep.
bool is_cheap(const Graph& graph, const Node& node) {
  return node.op->name == "cast" && std::ranges::all_of(node.inputs, [&](ValueId input) {
           return graph.value(input).producer == ir::kNoNode;
         });
}

// Gives the backward copies of the cheap nodes whose values it reads.
void recompute_cheap_values(Graph& graph) {
  std::map<ValueId, ValueId> again;
  const std::vector<Node> nodes = std::exchange(graph.nodes, {});
  for (Node node : nodes) {
    if (!is_forward(node))
      for (ValueId& input : node.inputs) {
        const ir::NodeId producer = graph.value(input).producer;
        if (producer == ir::kNoNode) continue;
        const Node& maker = nodes[index(producer)];
        if (!is_forward(maker) || !is_cheap(graph, maker)) continue;
        const auto [known, is_new] = again.try_emplace(input, ir::kNoValue);
        if (is_new) {
          known->second = graph.add_value(graph.value(input).type);
          Node copy{.op = maker.op,
                    .attributes = maker.attributes,
                    .inputs = maker.inputs,
                    .outputs = {known->second},
                    .tag = maker.tag};
          copy.tag.phase = Phase::kRecompute;
          graph.nodes.push_back(std::move(copy));
        }
        input = known->second;
      }
    graph.nodes.push_back(std::move(node));
  }
  renumber_producers(graph);
}

// Adds the node that makes a part of a weight, of that type.
ValueId add_part(ir::GraphBuilder& builder, ValueId weight, const WeightPart& part,
                 const TensorType& type) {
  if (part.is_whole()) return passes::add_derivation(builder, weight, type);
  spec::Attributes attributes{{"dtype", std::string(to_string(type.dtype))},
                              {"layout", std::string(text(type.layout))}};
  if (part.is_of_columns()) {
    attributes["first_column"] = part.first_column;
    attributes["column_step"] = part.column_step;
  } else {
    attributes["first_row"] = part.first_row;
    attributes["rows"] = part.rows;
  }
  return builder.add1("pack", {weight}, std::move(attributes));
}

// The packing's place in the list, which it is added to where it is new.
std::size_t find_packed(std::vector<PackedValue>& packed, const WeightPart& part,
                        const TensorType& type, const LayerSignature& signature) {
  const LayerPacking packing{
      .input = part.input,
      .form = fmt::format("{} from row {}, column {} by {}", to_string(type), part.first_row,
                          part.first_column, part.column_step),
      .bytes = type.num_bytes()};
  for (std::size_t i = 0; i < packed.size(); ++i)
    if (packed[i].packing.input == packing.input && packed[i].packing.form == packing.form)
      return i;
  PackedValue& made = packed.emplace_back();
  made.name = packed_name(packed.size() - 1);
  made.packing = packing;
  ir::GraphBuilder builder(made.graph, ops::find_op);
  const LayerTensor& input = signature.inputs[part.input];
  builder.output(add_part(builder, builder.batch_input(input.name, to_type(input)), part, type),
                 made.name);
  ir::verify(made.graph);
  return packed.size() - 1;
}

// Replaces parameters, copies and packings by inputs and by nodes that make them, each before its
// first reader.
void take_weights(Graph& graph, const std::vector<WeightPart>& parts,
                  const LayerSignature& signature, std::vector<PackedValue>& packed) {
  ir::GraphBuilder builder(graph, ops::find_op);
  std::map<std::string, ValueId> inputs;
  const auto input_of = [&](const std::string& name, const TensorType& type) {
    const auto [found, is_new] = inputs.try_emplace(name, ir::kNoValue);
    if (is_new) found->second = builder.batch_input(name, type);
    return found->second;
  };
  const auto derive = [&](const ir::State& state, bool in_forward) {
    const Name primary = state.owner != Name{} ? state.owner : state.name;
    const auto part = std::ranges::find(parts, primary, &WeightPart::state);
    ANABATIC_CHECK(part != parts.end(), "[{}] no weight {}", signature.layer, text(primary));
    const LayerTensor& input = signature.inputs[part->input];
    const TensorType type = graph.value(state.before).type, weight = to_type(input);
    if (part->is_whole() && weight == type) return input_of(input.name, weight);
    if (std::ranges::find(signature.packed, input.name) == signature.packed.end())
      return add_part(builder, input_of(input.name, weight), *part, type);
    PackedValue& value = packed[find_packed(packed, *part, type, signature)];
    (in_forward ? value.packing.in_forward : value.packing.in_backward) = true;
    return input_of(value.name, type);
  };
  std::map<ValueId, ValueId> made;  // by value of a state
  std::vector<Node> nodes = std::exchange(graph.nodes, {});
  for (Node& node : nodes) {
    for (ValueId& input : node.inputs) {
      const auto state = std::ranges::find(graph.states, input, &ir::State::before);
      if (state == graph.states.end()) continue;
      const auto [known, is_new] = made.try_emplace(input, ir::kNoValue);
      if (is_new) {
        ir::Tag tag = node.tag;
        if (!is_forward(node)) tag.phase = Phase::kRecompute;
        builder.set_tag(tag);
        known->second = derive(*state, is_forward(node));
      }
      input = known->second;
    }
    graph.nodes.push_back(std::move(node));
  }
  graph.states.clear();
  ir::drop_undefined_values(graph);
}

void keep_live(Graph& graph) {
  (void)passes::find_pass("dead_code")->run(graph, {.find_op = ops::find_op});
}

void keep_phase(Graph& graph, bool forward) {
  std::vector<bool> keep;
  for (const Node& node : graph.nodes) keep.push_back(is_forward(node) == forward);
  ir::keep_nodes(graph, keep);
}

std::vector<ValueId> saved_values(const Graph& graph) {
  std::vector<ValueId> saved;
  for (const Node& node : graph.nodes) {
    if (is_forward(node)) continue;
    for (const ValueId input : node.inputs) {
      const ir::NodeId producer = graph.value(input).producer;
      if (producer != ir::kNoNode && is_forward(graph.node(producer))) saved.push_back(input);
    }
  }
  std::ranges::sort(saved);
  saved.erase(std::unique(saved.begin(), saved.end()), saved.end());
  return saved;
}

}  // namespace

std::string packed_name(std::size_t packing) { return fmt::format("packed.{}", packing); }

SplitLayer split_layer(LayerGraph layer, const LayerSignature& signature, ir::FindOp find_op) {
  const bool has_gradients = !signature.gradients.empty();
  run_passes(layer, has_gradients, find_op);
  Graph& graph = layer.graph;
  SplitLayer result;
  if (!has_gradients) {
    keep_live(graph);
    take_weights(graph, layer.parts, signature, result.packed);
    ir::verify(graph);
    result.forward = std::move(graph);
    return result;
  }
  GradientOutputs(layer, signature).make();
  recompute_cheap_values(graph);
  keep_live(graph);
  const std::vector<ValueId> saved = saved_values(graph);
  Graph backward;
  for (const ValueId value : saved) {
    const auto output = std::ranges::find(graph.outputs, value);
    SavedValue entry{.name = fmt::format("saved.{}", result.saved.size()),
                     .type = graph.value(value).type};
    for (std::size_t i = 0; i < signature.inputs.size(); ++i)
      if (text(graph.value(value).name) == kUnscaled + signature.inputs[i].name)
        entry.gradient = static_cast<int>(i);
    if (output == graph.outputs.end()) {
      graph.value(value).name = intern(entry.name);
    } else {
      entry.name = text(graph.value(value).name);
      entry.output =
          static_cast<int>(std::ranges::find(layer.outputs, entry.name) - layer.outputs.begin());
    }
    result.saved.push_back(std::move(entry));
  }
  backward = graph;
  const auto is_of_layer = [&](const Graph& of, ValueId value) {
    return std::ranges::find(layer.outputs, text(of.value(value).name)) != layer.outputs.end();
  };
  for (const ValueId value : saved) {
    backward.value(value).producer = ir::kNoNode;
    backward.batch.push_back(value);
  }
  std::erase_if(backward.outputs, [&](ValueId value) { return is_of_layer(backward, value); });
  // The saved values are inputs now: the nodes that made them go first.
  keep_phase(backward, false);
  take_weights(backward, layer.parts, signature, result.packed);

  std::erase_if(graph.outputs, [&](ValueId value) { return !is_of_layer(graph, value); });
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (result.saved[i].output < 0) graph.outputs.push_back(saved[i]);
  std::erase_if(graph.batch, [&](ValueId value) {
    return text(graph.value(value).name).starts_with(passes::seed_name(""));
  });
  keep_phase(graph, true);
  take_weights(graph, layer.parts, signature, result.packed);
  ir::verify(graph);
  ir::verify(backward);
  result.forward = std::move(graph);
  result.backward = std::move(backward);
  return result;
}

Graph backward_for(const Graph& backward, const std::set<std::string>& inputs) {
  Graph result = backward;
  std::erase_if(result.outputs, [&](ValueId value) {
    return std::ranges::none_of(inputs, [&](const std::string& input) {
      return text(result.value(value).name) == passes::input_gradient_name(input);
    });
  });
  keep_live(result);
  return result;
}

}  // namespace anabatic::layer
