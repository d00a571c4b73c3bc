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

  // For a call (index into Program::calls) whose kernel sums the windows that it updates; null: the
  // engine sums them.
  kernels::ByteWatch* watch(std::size_t call);

  // Before a variant's calls. A forward may follow one that had no backward.
  void begin(Action action, const Variant& variant);
  // Transfers before this one of them. ResourceError: the disk's first error. InternalError:
  // the schedule did not bring the state that is to be updated.
  void before(std::size_t call) {
    if (next_ != end_ && static_cast<std::size_t>(next_->call) <= call) move(call);
  }
  // After the last one.
  void end();

  // Before anything other than calls writes to the frame.
  void wait_all();

 private:
  struct Window {
    std::size_t region = 0;
    std::byte* data = nullptr;
    Ticket read = 0, write = 0;
    // Read, or on its way: a state until it is written, anything else until it is awaited.
    bool is_here = false;
    bool is_leaving = false;     // not of a state: its write was not awaited
    WindowSums* sums = nullptr;  // null: the engine computes them
  };
  void add_watches(const Variant& variant);
  Ticket read(const Window& window);
  Ticket write(const Window& window);
  void move(std::size_t call);
  void forget_transfers();

  const Program* program_ = nullptr;
  SwapSpace* swap_ = nullptr;
  std::vector<Window> windows_;
  std::span<std::byte> pinned_;  // of the frame: all windows
  std::deque<WindowSums> sums_;
  std::map<std::size_t, CallWatch> watches_;  // by index into Program::calls
  std::size_t num_states_ = 0;  // windows of states that are no copies: they come first
  const SwapPoint *next_ = nullptr, *end_ = nullptr;
};

}  // namespace anabatic::runtime::swap
