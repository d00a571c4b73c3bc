// SPDX-License-Identifier: Apache-2.0
// The part of the plan's verifier that knows transfers between frame and disk.
#pragma once
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "ir/graph.h"
#include "plan/plan.h"

// A check of the plan's verifier.
#define ANABATIC_RULE(condition, rule, ...) \
  ANABATIC_CHECK(condition, "[plan verifier] " rule ": {}", ::fmt::format(__VA_ARGS__))

namespace anabatic::plan {

// Follows the windows and offloads of a plan along its positions. Throws as verify() does.
class WindowVerifier {
 public:
  WindowVerifier(const ir::Graph& graph, const Plan& plan);

  // Whether a buffer is a window: bytes of the frame that belong to a state.
  bool is_window(std::int32_t buffer) const {
    return window_of_buffer_[static_cast<std::size_t>(buffer)] >= 0;
  }
  bool is_window(ir::ValueId value) const { return is_window(plan_.buffer_of_value[index(value)]); }
  const PlannedBuffer& buffer(const SwapWindow& window) const {
    return plan_.buffers[static_cast<std::size_t>(window.buffer)];
  }
  ir::ValueId before(const SwapWindow& window) const { return state(window).before; }
  ir::ValueId after(const SwapWindow& window) const { return state(window).after; }

  // Before the node at `position` of the step: writes that are queued, and those that are done.
  void queue_writes(std::int32_t position);
  void end_writes(std::int32_t position, bool is_next_step);
  // A read of a window or an offload is queued; offloads are counted after the windows. And it is
  // awaited: all writes that were queued before it are done then.
  void queue_read(std::size_t read) { num_before_[read] = num_queued_; }
  void await_read(std::size_t read);
  // A node is about to write to these bytes of the frame.
  void check_write(std::int64_t begin, std::int64_t end) const;
  bool is_draining() const { return !draining_.empty(); }

 private:
  void check_offload(const Offload& offload) const;
  void check_sectors(const Offload& offload, ir::ValueId value) const;
  const PlannedBuffer& buffer_of(ir::ValueId value) const {
    return plan_.buffers[static_cast<std::size_t>(plan_.buffer_of_value[index(value)])];
  }
  const ir::State& state(const SwapWindow& window) const {
    return graph_.states[static_cast<std::size_t>(buffer(window).state)];
  }
  const ir::Graph& graph_;
  const Plan& plan_;
  std::vector<std::int32_t> window_of_buffer_;
  struct Draining {
    std::int64_t begin, end;  // bytes of the frame
    ir::ValueId value;
    std::int32_t written_by;
    bool by_next_step;
    int place;  // among all writes of the step
  };
  std::vector<Draining> draining_;  // what has a write queued
  std::vector<int> num_before_;     // a read: writes queued before it
  int num_queued_ = 0;
};

}  // namespace anabatic::plan
