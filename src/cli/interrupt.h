// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as a flag that a run reads between steps.
#pragma once
#include <signal.h>

namespace anabatic::cli {

// Catches both signals during its lifetime and restores the former handlers afterwards. A second
// signal ends the process at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool requested() const;

 private:
  struct sigaction old_interrupt_ {
  }, old_terminate_{};
};

}  // namespace anabatic::cli
