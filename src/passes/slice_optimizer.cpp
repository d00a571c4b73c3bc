// SPDX-License-Identifier: Apache-2.0
#include "passes/slice_optimizer.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rounding.h"
#include "ir/rewrite.h"
#include "ops/optimizer_step.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// A bound for the size of the graph of a large model.
constexpr std::int64_t kMostSlices = 1024;

// The inputs of an update that are cut, as places among its inputs, moments last. Output i is the
// update of cut[i - 1], for output 0 is the parameter, or its upper 16 bits, which is not cut.
// Empty for other nodes, for slices and where packings are written.
std::vector<std::size_t> cut_inputs(const Node& node) {
  const auto step = ops::optimizer_step_of(node);
  if (!step || step->is_slice || step->packs != spec::Packs::kNone) return {};
  std::vector<std::size_t> cut{step->first_moment(), step->second_moment()};
  if (step->is_split) cut.insert(cut.begin(), step->low());
  return cut;
}

// `count` rows from first_row of each of `matrices` consecutive matrices: all their rows, unless
// there is one matrix.
struct Slice {
  std::int64_t first_row, matrices, count;
};

// `cuts`: matrices at which a slice begins.
std::vector<Slice> slices_of(const TensorType& type, std::int64_t most_bytes,
                             const std::set<std::int64_t>& cuts) {
  const std::int64_t rows = type.dim(-2), matrices = type.ndim() == 3 ? type.dim(0) : 1;
  const std::int64_t panels = ceil_div(rows, kPanelColumns);
  const std::int64_t panel_bytes = is_panels(type.layout)
                                       ? panel_shape(type).panel_elements() * size_bytes(type.dtype)
                                       : kPanelColumns * type.dim(-1) * size_bytes(type.dtype);
  const std::int64_t most_panels = std::max<std::int64_t>(most_bytes / panel_bytes, 1);
  // Units of a part, for the fewest parts of at most `most` units, as equal as possible.
  const auto part_of = [](std::int64_t units, std::int64_t most) {
    return ceil_div(units, ceil_div(units, most));
  };
  std::vector<Slice> slices;
  if (most_panels >= panels) {
    for (std::int64_t begin = 0, end = 0; begin < matrices; begin = end) {
      const auto cut = cuts.upper_bound(begin);
      end = cut == cuts.end() ? matrices : std::min(*cut, matrices);
      const std::int64_t step = part_of(end - begin, most_panels / panels);
      for (std::int64_t matrix = begin; matrix < end; matrix += step)
        slices.push_back({matrix * rows, std::min(step, end - matrix), rows});
    }
    return slices;
  }
  const std::int64_t step = part_of(panels, most_panels) * kPanelColumns;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix)
    for (std::int64_t row = 0; row < rows; row += step)
      slices.push_back({matrix * rows + row, 1, std::min(step, rows - row)});
  return slices;
}

TensorType type_of(const Slice& slice, TensorType type) {
  if (type.ndim() == 3) type.shape[0] = slice.matrices;
  type.shape[type.shape.size() - 2] = slice.count;
  return type;
}

class Slicer {
 public:
  Slicer(Graph& graph, const PassContext& context)
      : graph_(graph), builder_(graph, context.find_op), expert_cuts_(context.options.expert_cuts) {
    std::int64_t bytes = 0;
    for (const ir::State& state : graph.states) {
      state_of_[state.before] = state;
      if (state.kind() == ir::StateKind::kOptimizer)
        bytes += builder_.type(state.before).num_bytes();
    }
    most_bytes_ = std::max(context.options.slice_bytes, bytes / kMostSlices);
  }

  bool run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    bool changed = false;
    for (Node& node : nodes) {
      const std::vector<std::size_t> cut = cut_inputs(node);
      std::vector<Slice> slices;
      if (!cut.empty()) slices = slices_for(node, cut);
      if (slices.size() <= 1) {
        graph_.nodes.push_back(std::move(node));
        continue;
      }
      slice(node, cut, slices);
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
    ir::drop_undefined_values(graph_);
    return true;
  }

 private:
  // Empty where its moments cannot be cut.
  std::vector<Slice> slices_for(const Node& node, const std::vector<std::size_t>& cut) const {
    for (auto moment = cut.end() - 2; moment != cut.end(); ++moment) {
      const std::size_t i = *moment;
      const TensorType& type = builder_.type(node.inputs[i]);
      const bool is_float = type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16;
      const bool is_cut = type.layout == kRowMajor || type.layout == panels_layout(false);
      if (!is_float || !is_cut || (type.ndim() != 2 && type.ndim() != 3) ||
          state_of_.count(node.inputs[i]) == 0)
        return {};
    }
    std::set<std::int64_t> experts;
    const auto parameter = state_of_.find(node.inputs[0]);
    if (expert_cuts_ != nullptr && parameter != state_of_.end())
      if (const auto found = expert_cuts_->find(text(parameter->second.name));
          found != expert_cuts_->end())
        experts = found->second;
    return slices_of(builder_.type(node.inputs[cut.back()]), most_bytes_, experts);
  }

  void slice(const Node& node, const std::vector<std::size_t>& cut,
             const std::vector<Slice>& slices) {
    builder_.set_tag(node.tag);
    std::vector<ValueId> inputs = node.inputs;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      for (const std::size_t input : cut) {
        const ValueId whole = node.inputs[input];
        inputs[input] = slice_of(state_of_.at(whole), slices[i], i);
        cut_.insert(whole);
      }
      spec::Attributes attributes = node.attributes;
      attributes["first_row"] = slices[i].first_row;
      const std::vector<ValueId> next = builder_.add(node.op->name, inputs, std::move(attributes));
      inputs[0] = next[0];
      for (std::size_t place = 0; place < cut.size(); ++place)
        graph_.states[graph_.states.size() - cut.size() + place].after = next[1 + place];
    }
    replaced_[node.outputs[0]] = inputs[0];
  }

  ValueId slice_of(const ir::State& whole, const Slice& slice, std::size_t i) {
    const TensorType& type = builder_.type(whole.before);
    const spec::Rows rows{slice.first_row, slice.matrices * slice.count,
                          type.num_elements() / type.dim(-1)};
    const ValueId value = builder_.state(slice_name(text(whole.name), i), type_of(slice, type),
                                         whole.role, whole.owner);
    graph_.states.back().rows = rows;
    return value;
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const ExpertCuts* expert_cuts_;
  std::int64_t most_bytes_ = 0;
  std::map<ValueId, ir::State> state_of_;  // by `before`
  std::set<ValueId> cut_;                  // states that slices replace
  std::map<ValueId, ValueId> replaced_;    // updated parameters, by the output of the uncut update
};

bool slice_optimizer(Graph& graph, const PassContext& context) {
  return context.options.slice_bytes > 0 && context.options.with_update &&
         Slicer(graph, context).run();
}

}  // namespace

std::string slice_name(std::string_view state, std::size_t slice) {
  return fmt::format("{}.slice.{}", state, slice);
}

std::vector<SlicedState> sliced_states(const Graph& graph) {
  std::vector<SlicedState> result;
  std::map<std::pair<ir::StateRole, Name>, std::size_t> place;
  for (const ir::State& state : graph.states) {
    if (state.rows.is_whole() || state.owner == Name{}) continue;
    const auto [at, is_new] = place.try_emplace({state.role, state.owner}, result.size());
    if (is_new) {
      TensorType type = graph.value(graph.find_state(state.owner)->before).type;
      type.dtype = graph.value(state.before).type.dtype;
      result.push_back({.role = state.role,
                        .name = intern(spec::state_name(state.role, text(state.owner))),
                        .type = std::move(type)});
    }
    result[at->second].slices.push_back({state.name, state.rows});
  }
  for (SlicedState& sliced : result)
    std::sort(sliced.slices.begin(), sliced.slices.end(),
              [](const auto& a, const auto& b) { return a.rows.first < b.rows.first; });
  return result;
}

const Pass kSliceOptimizer{.name = "slice_optimizer", .needs = {"updated"}, .run = slice_optimizer};

}  // namespace anabatic::passes
