// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "ir/op_schema.h"
#include "model/blocks/dropout.h"
#include "model/lora/adapter.h"
#include "ops/table.h"

namespace anabatic::model {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

class AdapterBuilder {
 public:
  AdapterBuilder(Graph& graph, const Adapter& adapter, double dropout)
      : graph_(graph), builder_(graph, ops::find_op), dropout_(dropout) {
    for (ir::State& state : graph.states)
      if (state.kind() == ir::StateKind::kParameter) state.is_trainable = false;
    for (const AdapterGroup& group : adapter.groups) add_states(group);
  }

  void run() {
    std::vector<Node> old_nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : old_nodes) {
      for (ValueId& input : node.inputs)
        if (const auto sum = sums_.find(input); sum != sums_.end()) input = sum->second;
      append(std::move(node));
      adapt(graph_.nodes.size() - 1);
    }
    replace_results();
    for (const auto& [key, weight] : weights_)
      ANABATIC_REQUIRE(weight.is_read, "[lora] expected {} that reads {}, found none",
                       key.second ? "an embedding" : "a product",
                       text(graph_.value(key.first).name));
  }

 private:
  struct Weight {
    const AdapterGroup* group = nullptr;
    ValueId a{}, b{};
    bool is_read = false;
  };

  void add_states(const AdapterGroup& group) {
    const auto state = [&](const std::string& name, std::vector<std::int64_t> shape,
                           const spec::Init& init) {
      const ValueId value = builder_.state(name, tensor_type(DType::kFloat32, std::move(shape)),
                                           ir::StateRole::kParameter);
      graph_.states.back().init = init;
      return value;
    };
    // As PEFT has them: A of a table is 0, and B of anything else.
    const spec::Init uniform{.rule = spec::Init::Rule::kUniform,
                             .deviation = 1 / std::sqrt(static_cast<double>(group.columns))},
        normal{.rule = spec::Init::Rule::kNormal, .deviation = 1}, zeros;
    const ValueId a = state(group.a(), group.a_shape(), group.is_table() ? zeros : uniform);
    for (const AdapterPart& part : group.parts) {
      const ir::State* weight = graph_.find_state(intern(part.parameter));
      if (weight == nullptr && group.kind == AdapterKind::kHead)
        weight = graph_.find_state(intern("embedding.weight"));
      ANABATIC_CHECK(weight != nullptr, "[lora] the graph has no {}", part.parameter);
      const std::pair key(weight->before, group.is_table());
      weights_[key] = {&group, a,
                       state(part.b(), group.b_shape(part), group.is_table() ? normal : zeros)};
    }
  }

  void append(Node node) {
    const auto id = static_cast<ir::NodeId>(graph_.nodes.size());
    for (const ValueId output : node.outputs) graph_.value(output).producer = id;
    graph_.nodes.push_back(std::move(node));
  }

  void adapt(std::size_t index_of_node) {
    const Node node = graph_.nodes[index_of_node];  // a copy: building nodes moves the vector
    const bool is_lookup = node.op->name == "embedding";
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const auto found = weights_.find({node.inputs[i], is_lookup});
      if (found == weights_.end()) continue;
      found->second.is_read = true;
      if (is_lookup) {
        add_lookup(node, found->second);
        continue;
      }
      const spec::ProductForm* form = ir::product_form(node);
      ANABATIC_REQUIRE(i == 1 && form != nullptr && form->is_plain() &&
                           form->role == spec::ProductRole::kForward,
                       "[lora] expected a product to read {}, got '{}' (layer {}, segment '{}')",
                       text(graph_.value(node.inputs[i]).name), node.op->name, node.tag.layer,
                       text(node.tag.segment));
      add_products(node, form->is_grouped, found->second);
    }
  }

  // Tokens without a gradient of the table have none of A.
  void add_lookup(const Node& node, const Weight& weight) {
    builder_.set_tag(node.tag);
    const ValueId narrow =
        scaled(builder_.add1("embedding", {weight.a, node.inputs[1]}, node.attributes), weight);
    add_result(node, builder_.add1("linear", {narrow, weight.b}));
  }

  void add_products(const Node& node, bool is_grouped, const Weight& weight) {
    builder_.set_tag(node.tag);
    const auto product = [&](ValueId x, ValueId matrix) {
      std::vector<ValueId> inputs{x, matrix};
      if (is_grouped) inputs.push_back(node.inputs[2]);  // offsets
      return builder_.add1(node.op->name, std::move(inputs));
    };
    const auto [place, is_new] = narrow_.try_emplace({weight.group, node.inputs[0]});
    if (is_new)
      place->second =
          scaled(product(dropped(node.inputs[0], is_grouped, weight), weight.a), weight);
    add_result(node, product(place->second, weight.b));
  }

  ValueId dropped(ValueId x, bool is_grouped, const Weight& weight) {
    ANABATIC_CHECK(!is_grouped || dropout_ == 0, "[lora] dropout of rows of experts");
    const auto [place, is_new] = dropped_.try_emplace(x);
    if (is_new) {
      const std::string site = weight.group->name + ".lora_dropout";
      place->second = add_dropout(builder_, x, dropout_, site, site);
    }
    return place->second;
  }

  // The scale is applied to the narrow result of A.
  ValueId scaled(ValueId narrow, const Weight& weight) {
    const double scale = weight.group->scale();
    return scale == 1 ? narrow : builder_.add1("scale", {narrow}, {{"factor", scale}});
  }

  void add_result(const Node& node, ValueId change) {
    const ValueId result = node.outputs[0];
    sums_[result] = builder_.add1("add", {result, change});
  }

  // Results that the caller asked for, and the objective.
  void replace_results() {
    for (ValueId& output : graph_.outputs)
      if (const auto sum = sums_.find(output); sum != sums_.end()) {
        std::swap(graph_.value(sum->second).name, graph_.value(output).name);
        output = sum->second;
      }
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  double dropout_;
  // By the value of the weight, and whether rows are looked up in it: one tensor can be both an
  // embedding and a head.
  std::map<std::pair<ValueId, bool>, Weight> weights_;
  std::map<std::pair<const AdapterGroup*, ValueId>, ValueId> narrow_;  // A x, by what it reads
  std::map<ValueId, ValueId> dropped_;  // by the value without dropout
  std::map<ValueId, ValueId> sums_;     // by the product without the adapter
};

}  // namespace

void add_adapter(ir::Graph& graph, const Adapter& adapter, double dropout) {
  AdapterBuilder(graph, adapter, dropout).run();
}

}  // namespace anabatic::model
