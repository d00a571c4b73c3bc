// SPDX-License-Identifier: Apache-2.0
#include "passes/pack_weights.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/error.h"
#include "ir/op_schema.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

constexpr std::size_t kPackedInput = 1;

// Whether the node's second input is a weight, as itself or transposed.
bool reads_weight(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->is_plain() && form->role != spec::ProductRole::kWeightGradient;
}

class Packer {
 public:
  Packer(Graph& graph, const PassContext& context)
      : graph_(graph), builder_(graph, context.find_op) {}

  bool run() {
    bool changed = false;
    const std::size_t num_states = graph_.states.size();
    for (std::size_t i = 0; i < num_states; ++i) changed |= pack(i);
    if (changed) drop_unread_copies(num_states);
    return changed;
  }

 private:
  // A weight that nothing updates yet.
  bool is_candidate(const ir::State& state) const {
    const TensorType& type = graph_.value(state.before).type;
    return (state.kind() == ir::StateKind::kParameter || state.kind() == ir::StateKind::kDerived) &&
           state.after == state.before && type.layout == kRowMajor &&
           (type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16 ||
            type.dtype == DType::kFloat16);
  }

  bool pack(std::size_t index) {
    if (!is_candidate(graph_.states[index])) return false;
    const ValueId weight = graph_.states[index].before;
    std::array<std::optional<ValueId>, 2> packed;
    for (Node& node : graph_.nodes) {
      if (!reads_weight(node) || node.inputs[kPackedInput] != weight) continue;
      const bool transposed = ir::product_form(node)->role == spec::ProductRole::kInputGradient;
      auto& value = packed[transposed ? 1 : 0];
      if (!value) value = packed_state(index, transposed);
      node.inputs[kPackedInput] = *value;
    }
    return packed[0].has_value() || packed[1].has_value();
  }

  ValueId packed_state(std::size_t index, bool transposed) {
    const ir::State& source = graph_.states[index];
    const Name primary = source.owner != Name{} ? source.owner : source.name;
    TensorType type = graph_.value(source.before).type;
    type.layout = panels_layout(transposed);
    const auto role = transposed ? ir::StateRole::kPackingTransposed : ir::StateRole::kPacking;
    ANABATIC_CHECK(graph_.find_state(role, primary) == nullptr,
                   "[pack_weights] '{}' has a packing already", text(primary));
    return builder_.state_of(primary, role, type);
  }

  bool is_read(ValueId value) const {
    const auto reads = [&](const Node& node) {
      return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
    };
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), reads) ||
           std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end();
  }

  // Looks at the first `count` states.
  void drop_unread_copies(std::size_t count) {
    for (std::size_t i = count; i-- > 0;) {
      const ir::State& state = graph_.states[i];
      if (state.kind() == ir::StateKind::kDerived && is_candidate(state) && !is_read(state.before))
        graph_.states.erase(graph_.states.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
};

bool pack_weights(Graph& graph, const PassContext& context) { return Packer(graph, context).run(); }

}  // namespace

const Pass kPackWeights{.name = "pack_weights", .needs = {"precision_chosen"}, .run = pack_weights};

}  // namespace anabatic::passes
