// SPDX-License-Identifier: Apache-2.0
#include "plan/frame_timeline.h"

#include <algorithm>

#include "plan/offsets.h"

namespace anabatic::plan {
namespace {

// Bytes of spans that begin and end at positions, summed up for each position.
class Spans {
 public:
  explicit Spans(std::size_t positions) : change_(positions + 1, 0) {}

  void add(std::int32_t begin, std::int32_t end, std::int64_t bytes) {
    change_[static_cast<std::size_t>(begin)] += bytes;
    change_[static_cast<std::size_t>(end)] -= bytes;
  }
  std::vector<std::int64_t> sums() const {
    std::vector<std::int64_t> result;
    std::int64_t sum = 0;
    for (const std::int64_t change : change_) result.push_back(sum += change);
    return result;
  }

 private:
  std::vector<std::int64_t> change_;
};

}  // namespace

FrameTimeline::FrameTimeline(const ir::Graph& graph, const Plan& plan)
    : position_(graph.nodes.size(), -1), forward_end_(graph.values.size(), 0) {
  for (const auto& [action, order] : plan.orders)
    for (const PlannedNode& planned : order) {
      const auto at = static_cast<std::int32_t>(planned_.size());
      position_[index(planned.node)] = at;
      planned_.push_back(&planned);
      if (action != spec::Action::kForward) continue;
      const ir::Node& node = graph.node(planned.node);
      for (const auto* list : {&node.inputs, &node.outputs})
        for (const ir::ValueId value : *list)
          forward_end_[index(value)] = std::max(forward_end_[index(value)], at + 1);
    }
  Spans live(planned_.size()), between(planned_.size());
  const auto add = [&](const Lifetime& lifetime, std::int64_t bytes) {
    live.add(lifetime.begin, lifetime.end, align_bytes(bytes));
    if (lifetime.end - lifetime.begin >= 2)
      between.add(lifetime.begin + 1, lifetime.end, align_bytes(bytes));
  };
  std::vector<bool> is_window(plan.buffers.size(), false);
  // A window needs its bytes for its use; before that, it takes what other buffers leave.
  for (const SwapWindow& window : plan.windows) {
    is_window[static_cast<std::size_t>(window.buffer)] = true;
    add({window.use, window.end}, window.bytes);
  }
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].arena == spec::Arena::kFrame && !is_window[i])
      add(plan.buffers[i].lifetime, plan.buffers[i].bytes);
  live_ = live.sums();
  ahead_ = between.sums();
  for (std::size_t at = 0; at < planned_.size(); ++at)
    live_[at] += align_bytes(planned_[at]->workspace_bytes);
}

FrameChanges::FrameChanges(const FrameTimeline& timeline)
    : timeline_(timeline),
      change_(timeline.size() + 1, 0),
      beside_(timeline.size(), 0),
      passing_(timeline.size(), 0) {}

void FrameChanges::add_ahead(std::size_t at, std::int64_t passing, std::int64_t bytes) {
  passing_[at] = std::max(passing_[at], change_[at] + passing);
  change_[at] += bytes;
}

MenuOutcome FrameChanges::outcome(std::int64_t budget_bytes) const {
  MenuOutcome result;
  std::int64_t changed = 0;
  for (std::size_t i = 0; i < timeline_.size(); ++i) {
    const std::int64_t ahead =
        passing_[i] > 0 ? timeline_.bytes_from_before(i) + changed + passing_[i] : 0;
    changed += change_[i];
    const std::int64_t live = std::max(ahead, timeline_.live_bytes(i) + changed + beside_[i]);
    result.peak_bytes = std::max(result.peak_bytes, live);
    result.excess += static_cast<double>(std::max<std::int64_t>(live - budget_bytes, 0));
  }
  return result;
}

}  // namespace anabatic::plan
