// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "ir/op_schema.h"

namespace anabatic::ir {

namespace {

Aliases aliases_of(const Node& node, Aliases (*of)(const spec::Attributes&)) {
  if (of == nullptr) return {};
  const Aliases inputs = of(node.attributes);
  return inputs.first(std::min(inputs.size(), node.outputs.size()));
}

}  // namespace

Aliases may_alias(const Node& node) { return aliases_of(node, node.op->may_alias); }
Aliases must_alias(const Node& node) { return aliases_of(node, node.op->must_alias); }

std::string op_and_form(const Node& node) {
  std::string words(node.op->name);
  if (node.op->form != nullptr) words += " " + node.op->form(node.attributes);
  return words;
}

std::vector<ValueId> GraphBuilder::add(std::string_view op, std::vector<ValueId> inputs,
                                       spec::Attributes attributes) {
  const OpSchema* schema = find_op_(op);
  ANABATIC_REQUIRE(schema != nullptr, "[builder] expected the name of an op, got '{}'", op);
  const auto num_inputs = static_cast<std::int64_t>(inputs.size());
  ANABATIC_REQUIRE(num_inputs >= schema->min_inputs &&
                       (schema->max_inputs < 0 || num_inputs <= schema->max_inputs),
                   "[{}] expected {}, got {} inputs", op, schema->signature, num_inputs);
  std::vector<TensorType> types;
  types.reserve(inputs.size());
  for (const ValueId id : inputs) {
    ANABATIC_CHECK(index(id) < graph_.values.size(), "[builder] {}: value {} is not in the graph",
                   op, index(id));
    types.push_back(graph_.value(id).type);
  }
  std::vector<TensorType> results = schema->infer(types, attributes);
  ANABATIC_CHECK(schema->num_outputs == kAnyNumber ||
                     results.size() == static_cast<std::size_t>(schema->num_outputs),
                 "[{}] infer gave {} types for {} outputs", op, results.size(),
                 schema->num_outputs);
  const NodeId id{static_cast<std::uint32_t>(graph_.nodes.size())};
  std::vector<ValueId> outputs;
  outputs.reserve(results.size());
  for (TensorType& type : results) outputs.push_back(graph_.add_value(std::move(type), Name{}, id));
  graph_.nodes.push_back({.op = schema,
                          .attributes = std::move(attributes),
                          .inputs = std::move(inputs),
                          .outputs = outputs,
                          .tag = tag_});
  return outputs;
}

ValueId GraphBuilder::add1(std::string_view op, std::vector<ValueId> inputs,
                           spec::Attributes attributes, std::string_view name) {
  const std::vector<ValueId> outputs = add(op, std::move(inputs), std::move(attributes));
  ANABATIC_CHECK(outputs.size() == 1, "[builder] {} has {} outputs, not one", op, outputs.size());
  if (!name.empty()) graph_.value(outputs[0]).name = intern(name);
  return outputs[0];
}

ValueId GraphBuilder::batch_input(std::string_view name, TensorType type) {
  const ValueId id = graph_.add_value(std::move(type), intern(name));
  graph_.batch.push_back(id);
  return id;
}

ValueId GraphBuilder::step_input(std::string_view name, TensorType type) {
  const ValueId id = graph_.add_value(std::move(type), intern(name));
  graph_.step_inputs.push_back(id);
  return id;
}

ValueId GraphBuilder::state(std::string_view name, TensorType type, StateRole role, Name owner) {
  const Name interned = intern(name);
  ANABATIC_REQUIRE(graph_.find_state(interned) == nullptr,
                   "[builder] expected a new state, got '{}' twice", name);
  const ValueId id = graph_.add_value(std::move(type), interned);
  State state{{.role = role, .owner = owner}};
  state.name = interned;
  state.before = state.after = id;
  graph_.states.push_back(state);
  return id;
}

ValueId GraphBuilder::state_of(Name owner, StateRole role, TensorType type) {
  const std::string name = role == StateRole::kCopy && type.dtype == DType::kFloat16
                               ? fmt::format("{}.f16", text(owner))
                               : spec::state_name(role, text(owner));
  const ValueId id = state(name, std::move(type), role, owner);
  if (const State* parameter = graph_.find_state(owner);
      parameter != nullptr && spec::kind_of(role) == StateKind::kDerived)
    graph_.states.back().grid = parameter->derived_grid();
  return id;
}

void GraphBuilder::output(ValueId value, std::string_view name) {
  ANABATIC_REQUIRE(!graph_.find_output(name), "[builder] expected a new output, got '{}' twice",
                   name);
  const Name interned = intern(name);
  Value& named = graph_.value(value);
  const bool listed =
      std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end();
  ANABATIC_REQUIRE((!listed && named.producer != kNoNode) || named.name == interned,
                   "[builder] value '{}' cannot become output '{}': its name is fixed",
                   text(named.name), name);
  named.name = interned;
  graph_.outputs.push_back(value);
}

}  // namespace anabatic::ir
