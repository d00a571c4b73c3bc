// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/fake_quantize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/op_schema.h"
#include "passes/precision/product_units.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateRole;
using ir::ValueId;

constexpr std::size_t kWeightInput = 1;

class GridChooser {
 public:
  GridChooser(Graph& graph, const PassContext& context)
      : graph_(graph),
        builder_(graph, context.find_op),
        options_(context.options.quantization),
        explanation_(context.options.explanation),
        has_frozen_(trains_adapter(graph)) {}

  bool run() {
    require_units(graph_, options_.units, "quantization.units",
                  [&](const Node& product) { return is_of_weight(product, !has_frozen_); });
    const std::set<Name> parameters = chosen();
    require_forms(parameters);
    bool changed = false;
    for (const Name parameter : parameters) changed |= choose(parameter);
    if (changed && options_.rounds_activations) round_activations(parameters);
    return changed;
  }

 private:
  // Whether it is a product of a weight that is trained, or of one that is frozen.
  bool is_of_weight(const Node& node, bool is_trained) const {
    if (!is_plain_product(node) || !is_outside_router(node)) return false;
    const State* weight = weight_of(graph_, node);
    return weight != nullptr && weight->is_trainable == is_trained;
  }

  // Weights of the units' products. Where some are frozen, those that are trained are an adapter's.
  std::set<Name> chosen() const {
    std::set<Name> parameters;
    for (const Node& node : graph_.nodes) {
      if (!is_of_weight(node, !has_frozen_)) continue;
      const bool is_wanted = std::ranges::any_of(
          options_.units, [&](const std::string& unit) { return is_in_unit(graph_, node, unit); });
      if (is_wanted) parameters.insert(weight_of(graph_, node)->name);
    }
    return parameters;
  }

  bool is_of(const State& state, Name parameter) const {
    return state.name == parameter ||
           (state.owner == parameter && state.kind() == ir::StateKind::kDerived);
  }

  // Another node than a product that reads the weight, or null.
  const Node* other_reader(Name parameter) const {
    for (const State& state : graph_.states) {
      if (!is_of(state, parameter)) continue;
      for (const Node& node : graph_.nodes)
        for (std::size_t i = 0; i < node.inputs.size(); ++i)
          if (node.inputs[i] == state.before && !(is_plain_product(node) && i == kWeightInput))
            return &node;
    }
    return nullptr;
  }

  void require_forms(const std::set<Name>& parameters) const {
    std::vector<std::string> problems;
    for (const Name parameter : parameters) {
      const std::int64_t columns = graph_.value(graph_.find_state(parameter)->before).type.dim(-1);
      if (const std::int64_t group = options_.grid->group; group > 0 && columns % group != 0)
        problems.push_back(fmt::format("'{}': expected rows of a multiple of {}, got {}{}",
                                       text(parameter), group, columns, dividing(columns)));
      if (const Node* reader = other_reader(parameter))
        problems.push_back(
            fmt::format("'{}': expected a weight that products alone read, but {} reads it too",
                        text(parameter), reader->op->name));
    }
    if (!problems.empty())
      throw InvalidArgument(fmt::format("[fake_quantize] {}:\n  {}", to_string(*options_.grid),
                                        fmt::join(problems, "\n  ")));
  }

  // What rows of so many elements can have instead.
  static std::string dividing(std::int64_t columns) {
    std::vector<std::string> grids;
    for (const std::int64_t group : kInt4Groups)
      if (columns % group == 0)
        grids.push_back(to_string(weight_grid(GridFormat::kInt4Group, group)));
    grids.push_back(to_string(weight_grid(GridFormat::kInt8Channel)));
    return fmt::format("; they can have {}", fmt::join(grids, ", "));
  }

  bool choose(Name parameter) {
    State& rounded = *graph_.find_state(parameter);
    if (rounded.grid == options_.grid) return false;
    rounded.grid = options_.grid;
    for (State& state : graph_.states)
      if (is_of(state, parameter) && &state != &rounded) state.grid = rounded.derived_grid();
    const ValueId weight = graph_.find_state(parameter)->before;
    const bool is_read = std::ranges::any_of(graph_.nodes, [&](const Node& node) {
      return std::ranges::find(node.inputs, weight) != node.inputs.end();
    });
    if (is_read && !has_frozen_) {
      const TensorType type = graph_.value(weight).type;
      const ValueId copy = builder_.state_of(parameter, StateRole::kRowMajorCopy, type);
      for (Node& node : graph_.nodes) std::ranges::replace(node.inputs, weight, copy);
    }
    if (explanation_ != nullptr)
      explanation_->push_back(fmt::format("{}: values of {}{}", text(parameter),
                                          to_string(*options_.grid),
                                          has_frozen_ ? ", rounded once as it is loaded" : ""));
    return true;
  }

  // Products of the parameters read their rows rounded. Others of the same rows do not.
  void round_activations(const std::set<Name>& parameters) {
    const std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    std::map<ValueId, ValueId> rounded;
    const auto round = [&](ValueId x, const auto& self) -> ValueId {
      if (const auto found = rounded.find(x); found != rounded.end()) return found->second;
      const auto producer = std::ranges::find_if(nodes, [&](const Node& node) {
        return std::ranges::find(node.outputs, x) != node.outputs.end();
      });
      // Tokens are rounded before they are gathered for experts: once, and products gather them.
      if (producer != nodes.end() && producer->op->name == "permute")
        return rounded[x] =
                   builder_.add1("permute", {self(producer->inputs[0], self), producer->inputs[1]},
                                 producer->attributes);
      return rounded[x] = builder_.add1("fake_quantize_tokens", {x});
    };
    for (Node node : nodes) {
      if (is_of_weight(node, !has_frozen_) && parameters.contains(weight_of(graph_, node)->name)) {
        builder_.set_tag(node.tag);
        node.inputs[0] = round(node.inputs[0], round);
      }
      const auto id = static_cast<ir::NodeId>(graph_.nodes.size());
      for (const ValueId output : node.outputs) graph_.value(output).producer = id;
      graph_.nodes.push_back(std::move(node));
    }
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const spec::QuantizationOptions& options_;
  std::vector<std::string>* explanation_;
  const bool has_frozen_;
};

bool fake_quantize(Graph& graph, const PassContext& context) {
  return context.options.quantization.grid && GridChooser(graph, context).run();
}

}  // namespace

const Pass kFakeQuantize{
    .name = "fake_quantize", .needs = {"precision_chosen"}, .required = true, .run = fake_quantize};

}  // namespace anabatic::passes
