// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <atomic>

namespace anabatic::cli {
namespace {

// A signal handler can only reach a global; the guard is its one owner.
std::atomic<bool> interrupt_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) { interrupt_requested.store(true); }

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupt_requested.store(false);
  struct sigaction action {};
  action.sa_handler = on_signal;
  // The second signal takes the default action; system calls in progress continue.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

bool InterruptGuard::requested() const { return interrupt_requested.load(); }

}  // namespace anabatic::cli
