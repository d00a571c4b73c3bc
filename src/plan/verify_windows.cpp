// SPDX-License-Identifier: Apache-2.0
#include "plan/verify_windows.h"

#include <algorithm>

#include "base/error.h"
#include "plan/swap.h"

namespace anabatic::plan {

#define ANABATIC_RULE(condition, rule, ...) \
  ANABATIC_CHECK(condition, "[plan verifier] " rule ": {}", ::fmt::format(__VA_ARGS__))

WindowVerifier::WindowVerifier(const ir::Graph& graph, const Plan& plan)
    : graph_(graph),
      plan_(plan),
      window_of_buffer_(plan.buffers.size(), -1),
      num_before_(plan.windows.size(), 0) {
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

void WindowVerifier::queue_writes(std::int32_t position) {
  for (const SwapWindow& window : plan_.windows)
    if (window.end == position) draining_.push_back({&window, num_queued_++});
}

void WindowVerifier::end_writes(std::int32_t position, bool is_next_step) {
  std::erase_if(draining_, [&](const Draining& write) {
    const SwapWindow& window = *write.window;
    return window.written_by == position && (window.written_by < window.end) == is_next_step;
  });
}

void WindowVerifier::await_read(std::size_t window) {
  std::erase_if(draining_,
                [&](const Draining& write) { return write.place < num_before_[window]; });
}

void WindowVerifier::check_write(std::int64_t begin, std::int64_t end) const {
  for (const auto& [window, place] : draining_) {
    const PlannedBuffer& at = buffer(*window);
    ANABATIC_RULE(begin >= end || end <= at.offset || begin >= at.offset + window->bytes,
                  "no transfer overlaps another use of its bytes",
                  "bytes [{}, {}) are overwritten while state {} may still go to disk", begin, end,
                  text(state(*window).name));
  }
}

}  // namespace anabatic::plan
