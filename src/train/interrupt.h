// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as a flag that the training loop reads between steps.
#pragma once
#include <signal.h>

namespace anabatic::train {

// Catches both signals while it lives and restores the former handlers after. A second signal ends
// the process at once.
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

}  // namespace anabatic::train
