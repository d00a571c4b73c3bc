// SPDX-License-Identifier: Apache-2.0
#include "plan/recompute_menu.h"

#include <algorithm>

#include "ops/table.h"
#include "plan/hints.h"
#include "plan/offsets.h"

namespace anabatic::plan {
bool MenuItem::is_of(std::string_view hint) const {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return is_named(key, hint); });
}

RecomputeMenu::RecomputeMenu(const ir::Graph& graph, const Plan& plan,
                             const spec::DeviceSpec& device, const OpEfficiency& efficiency)
    : graph_(graph),
      plan_(plan),
      device_(device),
      efficiency_(efficiency),
      rebuilder_(graph),
      position_(graph.nodes.size(), -1),
      forward_end_(graph.values.size(), 0) {
  std::int32_t position = 0;
  std::vector<std::int64_t> change;
  for (const auto& [action, order] : plan.orders) {
    for (const PlannedNode& planned : order) {
      position_[index(planned.node)] = position++;
      change.push_back(0);
    }
  }
  change.push_back(0);
  const auto add = [&](const Lifetime& lifetime, std::int64_t bytes) {
    change[static_cast<std::size_t>(lifetime.begin)] += align_bytes(bytes);
    change[static_cast<std::size_t>(lifetime.end)] -= align_bytes(bytes);
  };
  std::vector<bool> is_window(plan.buffers.size(), false);
  // A window needs its bytes for its use; ahead of it, it takes what others leave.
  for (const SwapWindow& window : plan.windows) {
    is_window[static_cast<std::size_t>(window.buffer)] = true;
    add({window.use, window.end}, window.bytes);
  }
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].arena == spec::Arena::kFrame && !is_window[i])
      add(plan.buffers[i].lifetime, plan.buffers[i].bytes);
  std::int64_t live = 0;
  for (const std::int64_t delta : change) live_.push_back(live += delta);
  for (const auto& [action, order] : plan.orders)
    for (const PlannedNode& planned : order) {
      const std::int32_t at = position_[index(planned.node)];
      live_[static_cast<std::size_t>(at)] += align_bytes(planned.workspace_bytes);
      const ir::Node& node = graph.node(planned.node);
      if (action != spec::Action::kForward) continue;
      for (const auto* list : {&node.inputs, &node.outputs})
        for (ir::ValueId value : *list)
          forward_end_[index(value)] = std::max(forward_end_[index(value)], at + 1);
    }
  add_items();
}

void RecomputeMenu::add_items() {
  for (const analysis::SavedValue& saved : rebuilder_.saved()) {
    const ir::NodeId producer = graph_.value(saved.value).producer;
    const std::int64_t bytes = graph_.value(saved.value).type.num_bytes();
    const bool apart = graph_.node(producer).op->name.ends_with("_with_products") ||
                       graph_.node(producer).op->name == "add_rms_norm";
    if (!apart && !items_.empty() &&
        graph_.value(items_.back().values.front()).producer == producer) {
      items_.back().keys.push_back(saved.key);
      items_.back().values.push_back(saved.value);
      items_.back().bytes += bytes;
      continue;
    }
    items_.push_back({saved.key, {saved.key}, {saved.value}, bytes});
  }
}

double RecomputeMenu::price(const analysis::Rebuild& rebuild) const {
  const ir::Node node{.op = ops::find_op(rebuild.op),
                      .attributes = rebuild.attributes,
                      .inputs = rebuild.inputs,
                      .outputs = rebuild.outputs,
                      .tag = {.phase = ir::Phase::kRecompute}};
  return predicted_seconds(graph_, node, device_, efficiency_);
}

MenuOutcome RecomputeMenu::evaluate(const std::vector<bool>& chosen,
                                    std::int64_t budget_bytes) const {
  std::vector<bool> is_dropped(graph_.values.size(), false);
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (chosen[i])
      for (ir::ValueId value : items_[i].values) is_dropped[index(value)] = true;

  MenuOutcome outcome;
  std::vector<std::int64_t> change(live_.size() + 1, 0), beside(live_.size(), 0);
  for (const analysis::Rebuild& rebuild : rebuilder_.rebuilds(is_dropped)) {
    outcome.seconds += price(rebuild);
    const auto at = static_cast<std::size_t>(position_[index(rebuild.before)]);
    for (ir::ValueId value : rebuild.outputs) {
      const std::int64_t bytes = align_bytes(graph_.value(value).type.num_bytes());
      if (is_dropped[index(value)]) {
        change[static_cast<std::size_t>(forward_end_[index(value)])] -= bytes;
        change[at] += bytes;
      } else {
        beside[at] += bytes;
      }
    }
  }
  std::int64_t saved = 0;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    saved += change[i];
    const std::int64_t live = live_[i] + saved + beside[i];
    outcome.peak_bytes = std::max(outcome.peak_bytes, live);
    outcome.excess += static_cast<double>(std::max<std::int64_t>(live - budget_bytes, 0));
  }
  return outcome;
}

spec::Decisions RecomputeMenu::decisions(const std::vector<bool>& chosen) const {
  spec::Decisions result;
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (chosen[i]) result.recompute.insert(items_[i].keys.begin(), items_[i].keys.end());
  return result;
}

}  // namespace anabatic::plan
