// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/window_driver.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace anabatic::runtime::swap {

WindowDriver::WindowDriver(const Program& program, StateStore& store, std::span<std::byte> frame)
    : program_(&program), swap_(store.swap()) {
  auto low = static_cast<std::int64_t>(frame.size()), high = std::int64_t{0};
  std::vector<std::size_t> regions;
  for (const SwapRegion& region : program.regions)
    regions.push_back(swap_->add(region.name, region.bytes));
  for (const SwapWindow& window : program.windows) {
    const bool is_of_state = window.state >= 0;
    num_states_ += is_of_state && !window.is_copy;
    const StateSlot* state =
        is_of_state ? &program.states[static_cast<std::size_t>(window.state)] : nullptr;
    const SwapRegion* region =
        is_of_state ? nullptr : &program.regions[static_cast<std::size_t>(window.region)];
    const std::int64_t bytes =
        round_to_sectors(is_of_state ? state->type.num_bytes() : region->bytes);
    ANABATIC_CHECK(window.offset >= 0 && window.offset % kSectorBytes == 0 &&
                       window.offset + bytes <= static_cast<std::int64_t>(frame.size()),
                   "[executor] the window of {} at {} does not lie in a frame of {} bytes",
                   is_of_state ? text(state->name) : region->name, window.offset, frame.size());
    windows_.push_back(
        {is_of_state ? store.region(state->name) : regions[static_cast<std::size_t>(window.region)],
         frame.data() + window.offset});
    low = std::min(low, window.offset);
    high = std::max(high, window.offset + bytes);
  }
  if (!windows_.empty())
    swap_->pin(frame.subspan(static_cast<std::size_t>(low), static_cast<std::size_t>(high - low)));
}

WindowDriver::~WindowDriver() {
  if (swap_ && !windows_.empty()) swap_->finish();
}

void WindowDriver::begin(Action action, bool reads) {
  if (is_idle()) return;
  const auto points = program_->swap_points.find(action);
  const bool has_points = points != program_->swap_points.end();
  next_ = has_points ? points->second.data() : nullptr;
  end_ = has_points ? next_ + points->second.size() : nullptr;
  reads_ = reads || action == Action::kUpdate;
  if (action == Action::kForward && num_read_ > 0) {
    // A step that ended before its update.
    wait_all();
    num_read_ = 0;
  }
  if (action != Action::kUpdate) return;
  // Reads of earlier actions that did not happen there: the points there name the first windows.
  std::size_t num_ahead = num_states_;
  for (const SwapPoint* point = next_; point != end_; ++point)
    if (point->step == SwapStep::kRead)
      num_ahead = std::min(num_ahead, static_cast<std::size_t>(point->window));
  read_up_to(num_ahead);
}

void WindowDriver::read_up_to(std::size_t window) {
  for (; num_read_ < window; ++num_read_) {
    Window& next = windows_[num_read_];
    next.read = swap_->read(next.region, next.data);
  }
}

void WindowDriver::move(std::size_t call) {
  for (; next_ != end_ && static_cast<std::size_t>(next_->call) <= call; ++next_) {
    const auto index = static_cast<std::size_t>(next_->window);
    Window& window = windows_[index];
    switch (next_->step) {
      case SwapStep::kWrite:
        window.write = swap_->write(window.region, window.data);
        break;
      case SwapStep::kAwaitWrite:
        swap_->wait(window.write);
        break;
      case SwapStep::kRead:
        if (index >= num_states_)
          window.read = swap_->read(window.region, window.data);
        else if (reads_)
          read_up_to(index + 1);
        break;
      case SwapStep::kAwaitRead:
        swap_->wait(window.read);
        break;
    }
  }
}

void WindowDriver::end(Action action) {
  if (is_idle()) return;
  move(std::numeric_limits<std::size_t>::max());
  if (action == Action::kUpdate) num_read_ = 0;
}

void WindowDriver::wait_all() {
  if (swap_ && !is_idle()) swap_->wait_all();
}

}  // namespace anabatic::runtime::swap
