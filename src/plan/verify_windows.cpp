// SPDX-License-Identifier: Apache-2.0
#include "plan/verify_windows.h"

#include <algorithm>

#include "base/error.h"
#include "plan/swap.h"

namespace anabatic::plan {

WindowVerifier::WindowVerifier(const ir::Graph& graph, const Plan& plan)
    : graph_(graph),
      plan_(plan),
      window_of_buffer_(plan.buffers.size(), -1),
      num_before_(plan.windows.size() + plan.offloads.size(), 0) {
  for (const Offload& offload : plan.offloads) check_offload(offload);
  std::int32_t read_at = 0, length = 0;
  for (const auto& [action, order] : plan.orders) length += static_cast<std::int32_t>(order.size());
  for (std::size_t i = 0; i < plan.windows.size(); ++i) {
    const SwapWindow& window = plan.windows[i];
    const bool is_known = window.buffer >= 0 &&
                          static_cast<std::size_t>(window.buffer) < plan.buffers.size() &&
                          window_of_buffer_[static_cast<std::size_t>(window.buffer)] < 0;
    ANABATIC_RULE(is_known, "a buffer for every window", "window {}", i);
    window_of_buffer_[static_cast<std::size_t>(window.buffer)] = static_cast<std::int32_t>(i);
    const PlannedBuffer& at = buffer(window);
    ANABATIC_RULE(at.arena == spec::Arena::kFrame && at.state >= 0 &&
                      at.offset % kSwapAlignmentBytes == 0 && window.bytes >= at.bytes &&
                      window.bytes % kSwapAlignmentBytes == 0 &&
                      at.offset + window.bytes <= plan.frame_bytes,
                  "windows of whole sectors inside the frame", "window {} at {}", i, at.offset);
    ANABATIC_RULE(read_at <= window.read_at && window.read_at <= window.use &&
                      window.use < window.end && window.end <= length && window.written_by < length,
                  "reads queued in the order of their windows", "window {} read before {}", i,
                  window.read_at);
    read_at = window.read_at;
  }
}

void WindowVerifier::check_offload(const Offload& offload) const {
  const ir::Node& node = graph_.node(offload.reload);
  const ir::ValueId from = node.inputs[0], to = node.outputs[0];
  if (offload.is_of_state()) {
    ANABATIC_RULE(static_cast<std::size_t>(offload.state) < graph_.states.size() &&
                      graph_.states[static_cast<std::size_t>(offload.state)].before == from &&
                      offload.write_at == Offload::kNoPosition &&
                      offload.written_by == Offload::kNoPosition && offload.read_at >= 0 &&
                      offload.read_at <= offload.needed_at,
                  "copies of parameters that are only read", "n{} read before {}",
                  index(offload.reload), offload.read_at);
    return check_sectors(offload, to);
  }
  ANABATIC_RULE(offload.write_at < offload.written_by && offload.write_at <= offload.read_at &&
                    offload.read_at <= offload.needed_at,
                "offloads written before they are read", "n{} written before {}, read before {}",
                index(offload.reload), offload.write_at, offload.read_at);
  for (const ir::ValueId value : {from, to}) check_sectors(offload, value);
}

void WindowVerifier::check_sectors(const Offload& offload, ir::ValueId value) const {
  const PlannedBuffer& at = buffer_of(value);
  ANABATIC_RULE(at.arena == spec::Arena::kFrame && at.offset % kSwapAlignmentBytes == 0 &&
                    offload.bytes >= at.bytes && offload.bytes % kSwapAlignmentBytes == 0 &&
                    at.offset + offload.bytes <= plan_.frame_bytes,
                "offloads of whole sectors inside the frame", "value {} at {}", index(value),
                at.offset);
}

void WindowVerifier::queue_writes(std::int32_t position) {
  for (const SwapWindow& window : plan_.windows) {
    if (window.end != position) continue;
    const PlannedBuffer& at = buffer(window);
    draining_.push_back({at.offset, at.offset + window.bytes, after(window), window.written_by,
                         window.written_by < window.end, num_queued_++});
  }
  for (const Offload& offload : plan_.offloads) {
    if (offload.is_of_state() || offload.write_at != position) continue;
    const ir::ValueId value = graph_.node(offload.reload).inputs[0];
    const PlannedBuffer& at = buffer_of(value);
    draining_.push_back(
        {at.offset, at.offset + offload.bytes, value, offload.written_by, false, num_queued_++});
  }
}

void WindowVerifier::end_writes(std::int32_t position, bool is_next_step) {
  std::erase_if(draining_, [&](const Draining& write) {
    return write.written_by == position && write.by_next_step == is_next_step;
  });
}

void WindowVerifier::await_read(std::size_t read) {
  std::erase_if(draining_, [&](const Draining& write) { return write.place < num_before_[read]; });
}

void WindowVerifier::check_write(std::int64_t begin, std::int64_t end) const {
  for (const Draining& write : draining_)
    ANABATIC_RULE(begin >= end || end <= write.begin || begin >= write.end,
                  "no transfer overlaps another use of its bytes",
                  "bytes [{}, {}) are overwritten while value {} may still go to disk", begin, end,
                  index(write.value));
}

}  // namespace anabatic::plan
