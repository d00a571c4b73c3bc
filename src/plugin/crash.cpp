// SPDX-License-Identifier: Apache-2.0
#include "plugin/crash.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace anabatic::plugin {
namespace {

thread_local const CallPlace* current = nullptr;

struct Signal {
  int number;
  std::string_view name;
};
constexpr std::array kSignals{Signal{SIGSEGV, "SIGSEGV"}, Signal{SIGBUS, "SIGBUS"},
                              Signal{SIGFPE, "SIGFPE"}, Signal{SIGILL, "SIGILL"},
                              Signal{SIGABRT, "SIGABRT"}};
std::array<struct sigaction, kSignals.size()> before;

// A line that is written at once, made of what a handler may call.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const std::size_t count = std::min(text.size(), text_.size() - size_);
    std::copy_n(text.data(), count, text_.data() + size_);
    size_ += count;
    return *this;
  }
  void write() const {
    // Nobody is left to tell where this fails.
    [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 1024> text_{};
  std::size_t size_ = 0;
};

// Threads of one call may crash together: the first one reports, and ends the process.
std::atomic_flag is_reported = ATOMIC_FLAG_INIT;

void report_end(const CallPlace& place, std::string_view what, std::string_view name = {}) {
  while (is_reported.test_and_set()) ::pause();
  Line line;
  line << "\nerror: [plugin] " << place.plugin << ": " << place.function << " of op " << place.op
       << what << name;
  if (!place.node.empty()) line << " in node " << place.node;
  line << "; the process ends\n";
  line.write();
}

// A plugin that calls exit would end a run as if it had succeeded.
void report_exit() {
  if (current == nullptr) return;
  report_end(*current, " called exit");
  ::_exit(1);
}

// A second stack for the handler: the first one is full where it has overflowed. A thread that has
// one already keeps it.
class SignalStack {
 public:
  SignalStack() {
    stack_t was{};
    if (::sigaltstack(nullptr, &was) != 0 || (was.ss_flags & SS_DISABLE) == 0) return;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    const stack_t own{.ss_sp = bytes_.get(), .ss_flags = 0, .ss_size = kBytes};
    (void)::sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    if (bytes_ == nullptr) return;
    const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    (void)::sigaltstack(&none, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  // The registers of AVX-512 and AMX take 11 KB of it.
  static constexpr std::size_t kBytes = std::size_t{64} << 10;
  std::unique_ptr<std::byte[]> bytes_;
};

// The instruction, or abort, raises the signal again after this returns, for the former handler.
void report(int number, siginfo_t*, void*) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i].number != number) continue;
    if (current != nullptr) report_end(*current, " crashed with ", kSignals[i].name);
    (void)::sigaction(number, &before[i], nullptr);
    if (number == SIGABRT) (void)::raise(number);
    return;
  }
}

}  // namespace

const CallPlace* enter_plugin(const CallPlace* place) {
  static thread_local const SignalStack stack;
  const CallPlace* was = current;
  current = place;
  return was;
}

void report_crashes() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    (void)::sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      (void)::sigaction(kSignals[i].number, &action, &before[i]);
    (void)std::atexit(report_exit);
  });
}

}  // namespace anabatic::plugin
