// SPDX-License-Identifier: Apache-2.0
#include "ir/graph.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::ir {

bool Node::is_of_update() const {
  static const Name optimizer = intern("optimizer");
  return tag.phase == Phase::kUpdate || tag.segment == optimizer;
}

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackwardInput:
      return "backward_input";
    case Phase::kBackwardWeight:
      return "backward_weight";
    case Phase::kUpdate:
      return "update";
  }
  ANABATIC_CHECK(false, "[phase] unknown code {}", static_cast<int>(phase));
}

ValueId Graph::add_value(TensorType type, Name value_name, NodeId producer) {
  ANABATIC_CHECK(values.size() < index(kNoValue), "[graph] more values than ids");
  values.push_back({.type = std::move(type), .producer = producer, .name = value_name});
  return ValueId{static_cast<std::uint32_t>(values.size() - 1)};
}

const State* Graph::find_state(Name state) const {
  const auto found = std::find_if(states.begin(), states.end(),
                                  [&](const State& candidate) { return candidate.name == state; });
  return found != states.end() ? &*found : nullptr;
}

State* Graph::find_state(Name state) {
  return const_cast<State*>(static_cast<const Graph*>(this)->find_state(state));
}

const State* Graph::find_state(StateRole role, Name owner) const {
  const auto found = std::find_if(states.begin(), states.end(), [&](const State& candidate) {
    return candidate.role == role && candidate.owner == owner && candidate.rows.is_whole();
  });
  return found != states.end() ? &*found : nullptr;
}

std::optional<ValueId> Graph::find_output(std::string_view output_name) const {
  for (const ValueId id : outputs)
    if (text(value(id).name) == output_name) return id;
  return std::nullopt;
}

}  // namespace anabatic::ir
