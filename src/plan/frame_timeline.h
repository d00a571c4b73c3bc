// SPDX-License-Identifier: Apache-2.0
// The frame's bytes over the positions of a plan that keeps everything, and how choices change
// them.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "plan/memory_solver.h"
#include "plan/plan.h"

namespace anabatic::plan {

class FrameTimeline {
 public:
  // The plan must outlive the timeline.
  FrameTimeline(const ir::Graph& graph, const Plan& plan);

  std::size_t size() const { return live_.size(); }
  std::size_t position(ir::NodeId node) const {
    return static_cast<std::size_t>(position_[index(node)]);
  }
  const PlannedNode& planned(std::size_t position) const { return *planned_[position]; }
  // The position after the value's last use in the forward.
  std::size_t forward_end(ir::ValueId value) const {
    return static_cast<std::size_t>(forward_end_[index(value)]);
  }
  // Bytes at a position, with the workspace of its call; and the part that is alive before it.
  std::int64_t live_bytes(std::size_t position) const { return live_[position]; }
  std::int64_t bytes_from_before(std::size_t position) const { return ahead_[position]; }

 private:
  std::vector<std::int64_t> live_, ahead_;
  std::vector<const PlannedNode*> planned_;
  std::vector<std::int32_t> position_;     // by NodeId
  std::vector<std::int32_t> forward_end_;  // by ValueId
};

class FrameChanges {
 public:
  explicit FrameChanges(const FrameTimeline& timeline);

  // Bytes change from the position on, or at it alone.
  void add(std::size_t at, std::int64_t bytes) { change_[at] += bytes; }
  void add_beside(std::size_t at, std::int64_t bytes) { beside_[at] += bytes; }
  // Bytes change before the position, in an additional call that holds `passing` more than before:
  // a value is compressed there, or restored.
  void add_ahead(std::size_t at, std::int64_t passing, std::int64_t bytes);

  // Peak of the frame's live bytes, and their excess over `budget_bytes`; seconds stay 0.
  MenuOutcome outcome(std::int64_t budget_bytes) const;

 private:
  const FrameTimeline& timeline_;
  std::vector<std::int64_t> change_, beside_, passing_;  // by position
};

}  // namespace anabatic::plan
