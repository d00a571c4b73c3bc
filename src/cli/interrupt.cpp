// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <atomic>
#include <cstdint>
#include <ctime>

namespace anabatic::cli {
namespace {

// A launcher sends a signal of its own after one that the terminal sent.
constexpr std::int64_t kOneRequestNanoseconds = 2'000'000'000;

// A signal handler can only reach globals; the guard is their one owner. 0: no request yet.
std::atomic<std::int64_t> requested_at{0};
std::atomic<bool> has_terminated{false};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec + 1;
}

// A second request takes the default action.
void on_signal(int number) {
  if (number == SIGTERM) has_terminated.store(true);
  std::int64_t first = 0;
  if (requested_at.compare_exchange_strong(first, now()) || now() - first < kOneRequestNanoseconds)
    return;
  ::signal(number, SIG_DFL);
  ::raise(number);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  requested_at.store(0);
  has_terminated.store(false);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // system calls in progress continue
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    sigaction(kSignals[i], &action, &old_actions_[i]);
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    sigaction(kSignals[i], &old_actions_[i], nullptr);
}

bool InterruptGuard::requested() const { return requested_at.load() != 0; }

bool InterruptGuard::is_terminated() { return has_terminated.load(); }

}  // namespace anabatic::cli
