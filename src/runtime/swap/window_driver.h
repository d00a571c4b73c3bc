// SPDX-License-Identifier: Apache-2.0
// Moves a program's windows between the frame and the disk at the positions that the program names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/program.h"
#include "runtime/state_store.h"
#include "runtime/swap/swap_space.h"
#include "runtime/swap/window_sums.h"

namespace anabatic::runtime::swap {

class WindowDriver {
 public:
  WindowDriver() = default;
  // `frame` is the executor's arena; both must outlive the driver. InternalError if a window is not
  // inside it.
  WindowDriver(const Program& program, StateStore& store, std::span<std::byte> frame);
  ~WindowDriver();
  WindowDriver(const WindowDriver&) = delete;
  WindowDriver& operator=(const WindowDriver&) = delete;

  bool is_idle() const { return windows_.empty(); }

  // For a call whose kernel sums the windows that it updates; null: the engine sums them.
  kernels::ByteWatch* watch(Action action, std::size_t call);

  // Before an action. `is_last`: only the rest of this step comes before the update, or the action
  // is the update. Otherwise no state moves, because none is updated.
  void begin(Action action, bool is_last);
  // Transfers before this call. ResourceError: the disk's first error.
  void before(std::size_t call) {
    if (next_ != end_ && static_cast<std::size_t>(next_->call) <= call) move(call);
  }
  // After the last call.
  void end(Action action);

  // Before anything other than calls writes to the frame.
  void wait_all();

 private:
  struct Window {
    std::size_t region = 0;
    std::byte* data = nullptr;
    Ticket read = 0, write = 0;
    WindowSums* sums = nullptr;  // null: the engine computes them
  };
  void add_watches(Action action, const std::vector<SwapPoint>& points);
  Ticket read(const Window& window);
  Ticket write(const Window& window);
  void move(std::size_t call);
  void read_up_to(std::size_t window);

  const Program* program_ = nullptr;
  SwapSpace* swap_ = nullptr;
  std::vector<Window> windows_;
  std::span<std::byte> pinned_;  // of the frame: all windows
  std::deque<WindowSums> sums_;
  std::map<std::pair<Action, std::size_t>, CallWatch> watches_;  // by call
  std::size_t num_states_ = 0;  // windows of states that are no copies: they come first
  std::size_t num_read_ = 0;    // of these, with their read of this step queued
  bool is_last_ = false;
  const SwapPoint *next_ = nullptr, *end_ = nullptr;
};

}  // namespace anabatic::runtime::swap
