// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/precision.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string>

#include "base/error.h"
#include "ir/op_schema.h"
#include "passes/precision/product_units.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// Inputs that become 16 bits whatever they were.
struct OperandRow {
  std::string_view op;
  std::vector<std::size_t> operands;
};
const std::vector<std::size_t> kOfProducts{0, 1};
const std::array<OperandRow, 1> kTables{{{"embedding", {0}}}};
// Inputs, where a node has them, that share one dtype: of 16 bits as soon as one of them is.
const std::array<OperandRow, 5> kUniform{{{"add", {0, 1}},
                                          {"attention", {0, 1, 2}},
                                          {"cache_write", {0, 1}},
                                          {"activation", {0, 1}},
                                          {"join_heads", {0, 1}}}};
// Inputs that stay f32.
const std::array<OperandRow, 3> kPrecise{
    {{"gate_rows", {1}}, {"router", {0}}, {"router_z_loss", {0}}}};

template <std::size_t N>
const std::vector<std::size_t>& operands(const std::array<OperandRow, N>& table,
                                         std::string_view op) {
  static const std::vector<std::size_t> none;
  for (const OperandRow& row : table)
    if (row.op == op) return row.operands;
  return none;
}

class To16Bits {
 public:
  To16Bits(Graph& graph, const PassContext& context, DType half)
      : graph_(graph),
        builder_(graph, context.find_op),
        options_(context.options.products),
        half_(half) {}

  bool run() {
    require_units(graph_, options_);
    find_precise_values();
    lower_caches();
    std::vector<Node> old_nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : old_nodes) rewrite(std::move(node));
    return changed_;
  }

 private:
  // Logits and gates: what routers and losses read, and what the caller asked to see.
  void find_precise_values() {
    precise_.insert(graph_.outputs.begin(), graph_.outputs.end());
    for (const Node& node : graph_.nodes) {
      for (const std::size_t i : operands(kPrecise, node.op->name)) precise_.insert(node.inputs[i]);
      if (node.op->name == "cross_entropy" || node.op->name == "label_log_probabilities")
        precise_.insert(node.inputs[0]);
    }
    find_precise_terms();
  }

  // Where a sum of products is precise, so are its terms: logits of a router with an adapter.
  void find_precise_terms() {
    std::set<ValueId> products;
    for (const Node& node : graph_.nodes)
      if (is_plain_product(node)) products.insert(node.outputs[0]);
    for (const Node& node : graph_.nodes)
      if (node.op->name == "add" && precise_.contains(node.outputs[0]) &&
          std::ranges::all_of(node.inputs, [&](ValueId term) { return products.contains(term); }))
        precise_.insert(node.inputs.begin(), node.inputs.end());
  }

  void lower_caches() {
    for (const ir::State& state : graph_.states) {
      if (state.role != ir::StateRole::kCache) continue;
      TensorType& type = graph_.value(state.before).type;
      if (type.dtype != DType::kFloat32) continue;
      type.dtype = half_;
      changed_ = true;
    }
  }

  DType dtype(ValueId value) const { return graph_.value(value).type.dtype; }

  // One cast or one derived state a value, whoever reads it. Keyed by value and target dtype.
  ValueId as(ValueId value, DType wanted) {
    if (dtype(value) == wanted) return value;
    const auto key = std::pair(value, wanted);
    if (const auto found = converted_.find(key); found != converted_.end()) return found->second;
    const ir::State* state = parameter_of(value);
    const ValueId converted = state != nullptr && wanted == half_
                                  ? copy_of(state->name, value)
                                  : builder_.add1("cast", {value},
                                                  {{"dtype", std::string(to_string(wanted))},
                                                   {"rounding", std::string("even")}});
    changed_ = true;
    return converted_[key] = converted;
  }

  const ir::State* parameter_of(ValueId value) const {
    for (const ir::State& state : graph_.states)
      if (state.before == value && state.kind() == ir::StateKind::kParameter) return &state;
    return nullptr;
  }

  ValueId copy_of(Name parameter, ValueId value) {
    TensorType type = graph_.value(value).type;
    type.dtype = half_;
    return builder_.state_of(parameter, ir::StateRole::kCopy, type);
  }

  static std::vector<std::size_t> all_of(const Node& node) {
    std::vector<std::size_t> inputs(node.inputs.size());
    std::iota(inputs.begin(), inputs.end(), std::size_t{0});
    return inputs;
  }

  // Floats among these inputs become 16 bits as soon as one is. Where the op says that an input
  // does not take them, it is f32.
  void make_uniform(Node& node, const std::vector<std::size_t>& inputs) {
    const auto is = [&](std::size_t i, DType wanted) {
      return i < node.inputs.size() && dtype(node.inputs[i]) == wanted;
    };
    const auto takes = [&](std::size_t i) {
      return !node.op->takes || node.op->takes(static_cast<int>(i), half_);
    };
    const bool any_half = std::any_of(inputs.begin(), inputs.end(),
                                      [&](std::size_t i) { return is(i, half_) && takes(i); });
    for (const std::size_t i : inputs) {
      if (is(i, half_) && !takes(i)) node.inputs[i] = as(node.inputs[i], DType::kFloat32);
      if (any_half && is(i, DType::kFloat32) && takes(i))
        node.inputs[i] = as(node.inputs[i], half_);
    }
  }

  DType dtype_of_product(const Node& product) const {
    const Unit* kept = unit_of(graph_, product, options_.keep);
    return kept != nullptr && kept->second == spec::Precision::kFp32 ? DType::kFloat32 : half_;
  }

  void rewrite(Node node) {
    builder_.set_tag(node.tag);
    const std::string_view op = node.op->name;
    const bool is_product = is_plain_product(node);
    const DType of_product = is_product ? dtype_of_product(node) : half_;
    for (const std::size_t i : is_product ? kOfProducts : operands(kTables, op)) {
      const DType wanted = is_product ? of_product : half_;
      const DType other = wanted == half_ ? DType::kFloat32 : half_;
      if (dtype(node.inputs[i]) == other) node.inputs[i] = as(node.inputs[i], wanted);
    }
    make_uniform(node, node.op->takes ? all_of(node) : operands(kUniform, op));
    for (const std::size_t i : operands(kPrecise, op))
      if (dtype(node.inputs[i]) == half_) node.inputs[i] = as(node.inputs[i], DType::kFloat32);
    if (is_product && !ir::product_form(node)->is_grouped && dtype(node.inputs[0]) == half_ &&
        precise_.count(node.outputs[0]) != 0 && node.attributes.count("output_dtype") == 0) {
      node.attributes["output_dtype"] = std::string("f32");
      changed_ = true;
    }
    append(std::move(node));
  }

  void append(Node node) {
    std::vector<TensorType> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(graph_.value(input).type);
    const std::vector<TensorType> types = node.op->infer(inputs, node.attributes);
    const auto id = static_cast<ir::NodeId>(graph_.nodes.size());
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      ir::Value& value = graph_.value(node.outputs[i]);
      changed_ |= value.type != types[i];
      value.type = types[i];
      value.producer = id;
    }
    graph_.nodes.push_back(std::move(node));
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const spec::ProductOptions& options_;
  const DType half_;  // bf16 or f16
  std::set<ValueId> precise_;
  std::map<std::pair<ValueId, DType>, ValueId> converted_;
  bool changed_ = false;
};

bool choose_precision(Graph& graph, const PassContext& context) {
  switch (context.options.precision) {
    case spec::Precision::kFp32:
      return false;
    case spec::Precision::kBf16:
    case spec::Precision::kInt8:   // quantize_products does the rest
    case spec::Precision::kMixed:  // half_gradients does the rest
      return To16Bits(graph, context, DType::kBFloat16).run();
    case spec::Precision::kFp16:
      return To16Bits(graph, context, DType::kFloat16).run();
  }
  ANABATIC_CHECK(false, "[precision] unknown policy {}",
                 static_cast<int>(context.options.precision));
}

}  // namespace

const Pass kPrecision{.name = "precision",
                      .establishes = {"precision_chosen"},
                      .required = true,
                      .run = choose_precision};

}  // namespace anabatic::passes
