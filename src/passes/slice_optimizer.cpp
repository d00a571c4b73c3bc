// SPDX-License-Identifier: Apache-2.0
#include "passes/slice_optimizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "ir/rewrite.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// What keeps graphs of large models small.
constexpr std::int64_t kMostSlices = 1024;

constexpr std::string_view kSuffix = ".slice.";

// Where an update has its first moment, among inputs; the second one follows. Outputs have the
// parameter's parts alone before them.
std::optional<std::size_t> place_of_moments(const Node& node) {
  if (node.op->name == "adamw") return 2;
  if (node.op->name == "adamw_split") return 3;
  return std::nullopt;
}

// Rows [first, first + count) of `matrices` matrices that follow one another; count is all of them
// unless there is one matrix.
struct Slice {
  std::int64_t first_row, matrices, count;
};

std::vector<Slice> slices_of(const TensorType& type, std::int64_t most_bytes) {
  const std::int64_t rows = type.dim(-2), matrices = type.ndim() == 3 ? type.dim(0) : 1;
  const std::int64_t panels = (rows + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t panel_bytes = is_panels(type.layout)
                                       ? panel_shape(type).panel_elements() * size_bytes(type.dtype)
                                       : kPanelColumns * type.dim(-1) * size_bytes(type.dtype);
  const std::int64_t most_panels = std::max<std::int64_t>(most_bytes / panel_bytes, 1);
  // The fewest parts of at most `most` units, as equal as may be: how many units one has.
  const auto part_of = [](std::int64_t units, std::int64_t most) {
    const std::int64_t parts = (units + most - 1) / most;
    return (units + parts - 1) / parts;
  };
  std::vector<Slice> slices;
  if (most_panels >= panels) {
    const std::int64_t step = part_of(matrices, most_panels / panels);
    for (std::int64_t matrix = 0; matrix < matrices; matrix += step)
      slices.push_back({matrix * rows, std::min(step, matrices - matrix), rows});
    return slices;
  }
  const std::int64_t step = part_of(panels, most_panels) * kPanelColumns;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix)
    for (std::int64_t row = 0; row < rows; row += step)
      slices.push_back({matrix * rows + row, 1, std::min(step, rows - row)});
  return slices;
}

TensorType type_of(const Slice& slice, TensorType type) {
  if (type.ndim() == 3) type.shape[0] = {slice.matrices};
  type.shape[type.shape.size() - 2] = {slice.count};
  return type;
}

class Slicer {
 public:
  Slicer(Graph& graph, const PassContext& context)
      : graph_(graph), builder_(graph, context.find_op) {
    std::int64_t bytes = 0;
    for (const ir::State& state : graph.states) {
      state_of_[state.before] = state.name;
      if (state.kind == ir::StateKind::kOptimizer) bytes += builder_.type(state.before).num_bytes();
    }
    most_bytes_ = std::max(context.options.slice_bytes, bytes / kMostSlices);
  }

  bool run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    bool changed = false;
    for (Node& node : nodes) {
      const auto moments = place_of_moments(node);
      if (!moments || node.attributes.contains("first_row") || !is_large(node, *moments)) {
        graph_.nodes.push_back(std::move(node));
        continue;
      }
      slice(node, *moments);
      changed = true;
    }
    if (!changed) return false;
    std::vector<ValueId> replacement;
    for (std::size_t i = 0; i < graph_.values.size(); ++i)
      replacement.push_back(ValueId{static_cast<std::uint32_t>(i)});
    for (const auto& [from, to] : replaced_) replacement[index(from)] = to;
    std::erase_if(graph_.states,
                  [&](const ir::State& state) { return cut_.count(state.before) != 0; });
    ir::replace_uses(graph_, replacement);
    ir::keep_nodes(graph_, std::vector<bool>(graph_.nodes.size(), true));
    return true;
  }

 private:
  bool is_large(const Node& node, std::size_t moments) const {
    for (std::size_t i = moments; i < moments + 2; ++i) {
      const TensorType& type = builder_.type(node.inputs[i]);
      const bool is_float = type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16;
      const bool is_cut = type.layout == kRowMajor || type.layout == panels_layout(false);
      if (!is_float || !is_cut || (type.ndim() != 2 && type.ndim() != 3) ||
          type.num_bytes() <= most_bytes_ || state_of_.count(node.inputs[i]) == 0)
        return false;
    }
    return slices_of(builder_.type(node.inputs[moments]), most_bytes_).size() > 1;
  }

  void slice(const Node& node, std::size_t moments) {
    builder_.set_tag(node.tag);
    const std::vector<Slice> slices = slices_of(builder_.type(node.inputs[moments]), most_bytes_);
    const std::size_t num_parts = moments - 1;  // of the parameter: one, or two halves
    std::vector<ValueId> inputs = node.inputs;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      for (std::size_t input = moments; input < moments + 2; ++input) {
        const ValueId whole = node.inputs[input];
        inputs[input] =
            builder_.state(fmt::format("{}{}{}", text(state_of_.at(whole)), kSuffix, i),
                           type_of(slices[i], builder_.type(whole)), ir::StateKind::kOptimizer);
        cut_.insert(whole);
      }
      spec::Attributes attributes = node.attributes;
      attributes["first_row"] = slices[i].first_row;
      const std::vector<ValueId> next = builder_.add(node.op->name, inputs, std::move(attributes));
      for (std::size_t part = 0; part < num_parts; ++part) inputs[part] = next[part];
      for (std::size_t moment = 0; moment < 2; ++moment)
        graph_.states[graph_.states.size() - 2 + moment].after = next[num_parts + moment];
    }
    for (std::size_t part = 0; part < num_parts; ++part)
      replaced_[node.outputs[part]] = inputs[part];
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  std::int64_t most_bytes_ = 0;
  std::map<ValueId, Name> state_of_;     // by `before`
  std::set<ValueId> cut_;                // moments
  std::map<ValueId, ValueId> replaced_;  // parameters that an update leaves
};

bool run(Graph& graph, const PassContext& context) {
  return context.options.slice_bytes > 0 && context.options.with_update &&
         Slicer(graph, context).run();
}

}  // namespace

std::vector<SlicedState> sliced_states(const Graph& graph) {
  std::map<ValueId, Name> state_of;
  for (const ir::State& state : graph.states) state_of[state.before] = state.name;
  std::vector<SlicedState> result;
  std::map<Name, std::size_t> place;
  for (const Node& node : graph.nodes) {
    const auto moments = place_of_moments(node);
    if (!moments || !node.attributes.contains("first_row")) continue;
    for (std::size_t input = *moments; input < *moments + 2; ++input) {
      const Name slice = state_of.at(node.inputs[input]);
      const std::string_view name = text(slice);
      const Name whole = intern(name.substr(0, name.rfind(kSuffix)));
      const auto [at, is_new] = place.try_emplace(whole, result.size());
      if (is_new) {
        TensorType type = graph.value(node.inputs[0]).type;
        type.dtype = graph.value(node.inputs[input]).type.dtype;
        result.push_back({whole, std::move(type)});
      }
      result[at->second].slices.push_back(slice);
    }
  }
  return result;
}

const Pass kSliceOptimizer{.name = "slice_optimizer", .needs = {"updated"}, .run = run};

}  // namespace anabatic::passes
