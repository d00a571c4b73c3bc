// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as a flag that a run asks for between steps.
#pragma once
#include <signal.h>

namespace anabatic::cli {

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

}  // namespace anabatic::cli
