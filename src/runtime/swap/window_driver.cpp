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
  for (const auto& [action, variants] : program.variants)
    for (const Variant& variant : variants) add_watches(variant);
  if (windows_.empty()) return;
  pinned_ = frame.subspan(static_cast<std::size_t>(low), static_cast<std::size_t>(high - low));
  swap_->pin(pinned_);
}

// Windows of states that one call alone has between their read and their write.
void WindowDriver::add_watches(const Variant& variant) {
  std::map<std::int32_t, std::int32_t> awaited_at;  // by window
  for (const SwapPoint& point : variant.swap_points)
    if (point.step == SwapStep::kAwaitRead) awaited_at[point.window] = point.call;
  std::map<std::size_t, std::vector<WindowSums*>> by_call;
  for (const SwapPoint& point : variant.swap_points) {
    const auto index = static_cast<std::size_t>(point.window);
    const auto awaited = awaited_at.find(point.window);
    if (point.step != SwapStep::kWrite || index >= num_states_ || awaited == awaited_at.end() ||
        awaited->second + 1 != point.call || windows_[index].sums != nullptr)
      continue;
    const auto at =
        static_cast<std::size_t>(variant.calls[static_cast<std::size_t>(awaited->second)]);
    const Call& call = program_->calls[at];
    if (call.kernel->watched_outputs == nullptr) continue;
    std::vector<TensorType> types;
    for (const Operand& output : call.outputs) types.push_back(output.type);
    const std::uint32_t watched = call.kernel->watched_outputs(call.attributes, types);
    const std::int64_t offset = program_->windows[index].offset;
    for (std::size_t i = 0; i < call.outputs.size(); ++i)
      if ((watched >> i & 1) != 0 && call.outputs[i].arena == Arena::kFrame &&
          call.outputs[i].offset == offset) {
        Window& window = windows_[index];
        window.sums = &sums_.emplace_back(window.data, types[i].num_bytes(),
                                          swap_->region_bytes(window.region));
        std::vector<WindowSums*>& by_output = by_call[at];
        by_output.resize(call.outputs.size());
        by_output[i] = window.sums;
      }
  }
  for (auto& [call, by_output] : by_call) watches_.emplace(call, CallWatch(std::move(by_output)));
}

kernels::ByteWatch* WindowDriver::watch(std::size_t call) {
  const auto found = watches_.find(call);
  return found == watches_.end() ? nullptr : &found->second;
}

Ticket WindowDriver::read(const Window& window) {
  return window.sums != nullptr ? swap_->read_unchecked(window.region, window.data)
                                : swap_->read(window.region, window.data);
}

// What was read is compared here: after the call, which has summed it meanwhile.
Ticket WindowDriver::write(const Window& window) {
  if (window.sums == nullptr) return swap_->write(window.region, window.data);
  window.sums->end();
  swap_->check(window.region, window.sums->read());
  return swap_->write_summed(window.region, window.data, window.sums->written());
}

WindowDriver::~WindowDriver() {
  if (swap_ && !windows_.empty()) swap_->unpin(pinned_);
}

void WindowDriver::begin(Action action, const Variant& variant) {
  if (is_idle()) return;
  next_ = variant.swap_points.data();
  end_ = next_ + variant.swap_points.size();
  if (action == Action::kForward) forget_transfers();
}

// Forgets what a step that ended early has left: states that it read and did not update, and
// activations whose backward, which awaits them, did not run. Their bytes are about to be used.
void WindowDriver::forget_transfers() {
  if (std::ranges::none_of(windows_,
                           [](const Window& each) { return each.is_here || each.is_leaving; }))
    return;
  wait_all();
  for (Window& window : windows_) window.is_here = window.is_leaving = false;
}

void WindowDriver::move(std::size_t call) {
  for (; next_ != end_ && static_cast<std::size_t>(next_->call) <= call; ++next_) {
    const auto index = static_cast<std::size_t>(next_->window);
    const bool is_of_state = index < num_states_;
    Window& window = windows_[index];
    switch (next_->step) {
      case SwapStep::kWrite:
        window.write = write(window);
        window.is_here = false;
        window.is_leaving = !is_of_state;
        break;
      case SwapStep::kAwaitWrite:
        swap_->wait(window.write);
        window.is_leaving = false;
        break;
      case SwapStep::kRead:
        window.read = read(window);
        window.is_here = true;
        break;
      case SwapStep::kAwaitRead:
        ANABATIC_CHECK(window.is_here, "[executor] window {} is awaited and was not read", index);
        swap_->wait(window.read);
        window.is_here = is_of_state;
        if (window.sums != nullptr) window.sums->begin();
        break;
    }
  }
}

void WindowDriver::end() {
  if (!is_idle()) move(std::numeric_limits<std::size_t>::max());
}

void WindowDriver::wait_all() {
  if (swap_ && !is_idle()) swap_->wait_all();
}

}  // namespace anabatic::runtime::swap
