// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGUSR1 as a flag that a run reads between steps.
#pragma once
#include <signal.h>

#include <array>

namespace anabatic::cli {

// Catches the signals during its lifetime and restores the former handlers afterwards. Signals
// within two seconds are one request; a later one ends the process at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool requested() const;

  // Whether one of them was SIGTERM, by which a launcher ends all once one has died. False while
  // there is no guard.
  static bool is_terminated();

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1};
  std::array<struct sigaction, kSignals.size()> old_actions_{};
};

}  // namespace anabatic::cli
