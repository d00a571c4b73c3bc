// SPDX-License-Identifier: Apache-2.0
#include "passes/differentiate.h"

#include <algorithm>

#include "base/error.h"
#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
         dtype == DType::kFloat64;
}

class Differentiator {
 public:
  Differentiator(Graph& graph, const PassContext& context)
      : graph_(graph),
        builder_(graph, context.find_op),
        scales_loss_(context.options.with_update && context.options.optimizer.scales_loss) {}

  void run(const GradientRequest& request) {
    ANABATIC_REQUIRE(graph_.objective.has_value() || !request.outputs.empty(),
                     "[differentiate] expected graph '{}' to have an objective, got none",
                     graph_.name);
    const std::vector<ValueId> inputs = find_inputs(request);
    find_dependents(inputs);
    if (graph_.objective) seed(*graph_.objective);
    for (const std::string& output : request.outputs) take_seed(output);
    for (std::size_t i = num_forward_; i-- > 0;) visit(static_cast<NodeId>(i));
    list_contributions();
    for (const ValueId input : inputs) list_gradient(input);
    drop_unwanted();
  }

 private:
  std::vector<ValueId> find_inputs(const GradientRequest& request) const {
    std::vector<ValueId> result;
    for (const std::string& name : request.inputs) {
      const auto is_named = [&](ValueId id) { return text(graph_.value(id).name) == name; };
      auto found = std::ranges::find_if(graph_.batch, is_named);
      if (found == graph_.batch.end()) {
        found = std::ranges::find_if(graph_.step_inputs, is_named);
        ANABATIC_REQUIRE(found != graph_.step_inputs.end(),
                         "[differentiate] expected the name of an input of graph '{}', got '{}'",
                         graph_.name, name);
      }
      ANABATIC_REQUIRE(is_floating(graph_.value(*found).type.dtype),
                       "[differentiate] expected a floating input to differentiate by, got '{}' {}",
                       name, to_string(graph_.value(*found).type));
      result.push_back(*found);
    }
    return result;
  }

  // Which values depend on a parameter or on one of these inputs: gradients flow to no other.
  void find_dependents(const std::vector<ValueId>& inputs) {
    num_forward_ = graph_.nodes.size();
    parameter_of_.assign(graph_.values.size(), -1);
    depends_.assign(graph_.values.size(), false);
    pending_.resize(graph_.values.size());
    contributions_.resize(graph_.states.size());
    for (const ir::State& state : graph_.states) {
      const ir::State* parameter = state.owner != Name{} ? graph_.find_state(state.owner) : &state;
      if (parameter->kind() != ir::StateKind::kParameter || !parameter->is_trainable) continue;
      parameter_of_[index(state.before)] = static_cast<int>(parameter - graph_.states.data());
      depends_[index(state.before)] = true;
    }
    for (const ValueId input : inputs) depends_[index(input)] = true;
    for (const Node& node : graph_.nodes) {
      bool depends = false;
      for (const ValueId input : node.inputs) depends |= depends_[index(input)];
      for (const ValueId output : node.outputs)
        depends_[index(output)] = depends && is_floating(graph_.value(output).type.dtype);
    }
  }

  void seed(ValueId objective) {
    const ir::Value& value = graph_.value(objective);
    ANABATIC_REQUIRE(value.type.ndim() == 0 && is_floating(value.type.dtype),
                     "[differentiate] expected a floating scalar as objective, got {}",
                     to_string(value.type));
    ANABATIC_REQUIRE(depends_[index(objective)],
                     "[differentiate] expected the objective to depend on a parameter; graph '{}' "
                     "has no path from one",
                     graph_.name);
    // A parameter as objective has no producer to take the tag from.
    set_tag(value.producer == ir::kNoNode ? ir::Tag{} : graph_.node(value.producer).tag);
    pending_[index(objective)] = {
        scales_loss_
            ? builder_.step_input(kLossScale, value.type)
            : builder_.add1("fill", {}, {{"type", to_string(value.type)}, {"value", 1.0}})};
  }

  // The gradient of an output is an input; nothing reads it where the output depends on nothing.
  void take_seed(const std::string& name) {
    const std::optional<ValueId> output = graph_.find_output(name);
    ANABATIC_REQUIRE(output.has_value(),
                     "[differentiate] expected the name of an output of graph '{}', got '{}'",
                     graph_.name, name);
    const TensorType type = graph_.value(*output).type;
    ANABATIC_REQUIRE(is_floating(type.dtype),
                     "[differentiate] expected a floating output to start from, got '{}' {}", name,
                     to_string(type));
    const ValueId gradient = builder_.batch_input(seed_name(name), type);
    if (depends_[index(*output)]) pending_[index(*output)].push_back(gradient);
  }

  void set_tag(ir::Tag forward) {
    forward.phase = ir::Phase::kBackwardInput;
    builder_.set_tag(forward);
  }

  std::optional<ValueId> total(ValueId value) {
    const std::vector<ValueId> parts = std::move(pending_[index(value)]);
    if (parts.empty()) return std::nullopt;
    ValueId sum = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) sum = builder_.add1("add", {sum, parts[i]});
    return sum;
  }

  void visit(NodeId id) {
    // A copy: building nodes moves the vector.
    const Node node = graph_.node(id);
    bool reached = false, wanted = false;
    for (const ValueId output : node.outputs) reached |= !pending_[index(output)].empty();
    for (const ValueId input : node.inputs) wanted |= depends_[index(input)];
    if (!reached || !wanted) return;
    ANABATIC_REQUIRE(node.op->gradient != nullptr,
                     "[differentiate] expected a differentiable op, got '{}' (layer {}, segment "
                     "'{}'), which a gradient reaches",
                     node.op->name, node.tag.layer, text(node.tag.segment));
    set_tag(node.tag);
    ir::Gradients of_outputs;
    for (const ValueId output : node.outputs) of_outputs.push_back(total(output));
    const ir::Gradients of_inputs = node.op->gradient(builder_, node, of_outputs);
    ANABATIC_CHECK(of_inputs.size() == node.inputs.size(), "[differentiate] {}: {} gradients",
                   node.op->name, of_inputs.size());
    for (std::size_t i = 0; i < of_inputs.size(); ++i) {
      if (!of_inputs[i]) continue;
      depends_[index(node.inputs[i])] ? flow(node, node.inputs[i], *of_inputs[i])
                                      : unwanted_.push_back(*of_inputs[i]);
    }
  }

  // Gradients of frozen weights, and of what no parameter reaches: the op that gave them did not
  // know. A node with another result stays.
  void drop_unwanted() {
    std::vector<bool> is_used(graph_.values.size(), false), is_unwanted = is_used;
    for (const Node& node : graph_.nodes)
      for (const ValueId input : node.inputs) is_used[index(input)] = true;
    for (const ValueId output : graph_.outputs) is_used[index(output)] = true;
    for (const ValueId value : unwanted_) is_unwanted[index(value)] = !is_used[index(value)];
    std::vector<bool> keep(graph_.nodes.size(), true);
    for (std::size_t i = num_forward_; i < keep.size(); ++i)
      keep[i] = !std::ranges::all_of(graph_.nodes[i].outputs,
                                     [&](ValueId output) { return is_unwanted[index(output)]; });
    ir::remove_nodes(graph_, keep);
  }

  void flow(const Node& node, ValueId to, ValueId gradient) {
    const TensorType& type = graph_.value(gradient).type;
    const TensorType& wanted = graph_.value(to).type;
    ANABATIC_CHECK(type.shape == wanted.shape, "[differentiate] {}: gradient {} of a value {}",
                   node.op->name, to_string(type), to_string(wanted));
    if (const int parameter = parameter_of_[index(to)]; parameter >= 0) {
      credit(static_cast<std::size_t>(parameter), gradient);
      return;
    }
    if (type.dtype != wanted.dtype)
      gradient = builder_.add1(
          "cast", {gradient},
          {{"dtype", std::string(to_string(wanted.dtype))}, {"rounding", std::string("even")}});
    pending_[index(to)].push_back(gradient);
  }

  void credit(std::size_t parameter, ValueId gradient) {
    const ir::State& state = graph_.states[parameter];
    const Node& writer = graph_.node(graph_.value(gradient).producer);
    ANABATIC_REQUIRE(writer.op->can_accumulate,
                     "[differentiate] expected the gradient of parameter '{}' from an op that can "
                     "accumulate, got '{}'; read the parameter through linear, grouped_linear, "
                     "embedding or a norm",
                     text(state.name), writer.op->name);
    const TensorType &type = graph_.value(gradient).type, &wanted = graph_.value(state.before).type;
    ANABATIC_REQUIRE(type.dtype == wanted.dtype,
                     "[differentiate] expected the gradient of parameter '{}' to be {}, got {}",
                     text(state.name), to_string(wanted), to_string(type));
    contributions_[parameter].push_back(gradient);
  }

  void list_contributions() {
    for (std::size_t s = 0; s < contributions_.size(); ++s)
      for (std::size_t i = 0; i < contributions_[s].size(); ++i)
        builder_.output(contributions_[s][i], contribution_name(text(graph_.states[s].name), i));
  }

  // An output has one name and a maker: what has another name, or is a seed, is copied.
  void list_gradient(ValueId input) {
    const Name name = graph_.value(input).name;
    ir::Tag tag = builder_.tag();
    tag.phase = ir::Phase::kBackwardInput;
    builder_.set_tag(tag);
    std::optional<ValueId> gradient = total(input);
    if (!gradient)
      gradient = builder_.add1("fill", {},
                               {{"type", to_string(graph_.value(input).type)}, {"value", 0.0}});
    else if (graph_.value(*gradient).producer == ir::kNoNode ||
             graph_.value(*gradient).name != Name{})
      gradient = builder_.add1("scale", {*gradient}, {{"factor", 1.0}});
    builder_.output(*gradient, input_gradient_name(text(name)));
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  bool scales_loss_;
  std::size_t num_forward_ = 0;
  std::vector<int> parameter_of_;  // by value: index of the parameter's state, -1 for none
  std::vector<bool> depends_;
  std::vector<std::vector<ValueId>> pending_;        // by value: parts of its gradient
  std::vector<std::vector<ValueId>> contributions_;  // by state: gradients of parameters
  std::vector<ValueId> unwanted_;                    // gradients that go nowhere
};

bool differentiate(Graph& graph, const PassContext& context) {
  const GradientRequest* request = context.options.gradients;
  Differentiator(graph, context).run(request != nullptr ? *request : GradientRequest{});
  return true;
}

}  // namespace

std::string contribution_name(std::string_view parameter, std::size_t i) {
  return fmt::format("{}.{}", spec::state_name(ir::StateRole::kGradient, parameter), i);
}

std::string seed_name(std::string_view output) { return fmt::format("seeds.{}", output); }

std::string input_gradient_name(std::string_view input) {
  return spec::state_name(ir::StateRole::kGradient, input);
}

std::optional<ValueId> find_loss_scale(const Graph& graph) {
  for (const ValueId input : graph.step_inputs)
    if (text(graph.value(input).name) == kLossScale) return input;
  return std::nullopt;
}

const Pass kDifferentiate{.name = "differentiate",
                          .needs = {"precision_chosen"},
                          .establishes = {"differentiated"},
                          .required = true,
                          .run = differentiate};

}  // namespace anabatic::passes
