// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace anabatic::plugin::check {
namespace {

// A record in the pipe: its type, a text, kBetween, another text, and a byte of zero.
constexpr char kEntered = 'E', kPassed = 'P', kSkipped = 'S', kFailed = 'F';
constexpr char kBetween = '\x1f';
constexpr std::uintptr_t kNullBytes = 4096;

Reporter* reporter_of_signals = nullptr;

void on_fault(int number, siginfo_t* info, void*) {
  if (info->si_code == SEGV_MAPERR || info->si_code == SEGV_ACCERR)
    reporter_of_signals->fail_at(info->si_addr);
  (void)std::signal(number, SIG_DFL);  // the instruction raises it again
}

// The signals and exits that plugin/crash.h reports in a run: here the parent does.
void set_handlers(Reporter& reporter) {
  reporter_of_signals = &reporter;
  for (const int number : {SIGBUS, SIGFPE, SIGILL, SIGABRT}) (void)std::signal(number, SIG_DFL);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  (void)::sigemptyset(&action.sa_mask);
  (void)::sigaction(SIGSEGV, &action, nullptr);
  (void)::on_exit([](int code, void*) { ::_exit(code); }, nullptr);
}

[[noreturn]] void run_child(int pipe, const std::function<void(Reporter&)>& body) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  Reporter reporter(pipe);
  set_handlers(reporter);
  try {
    body(reporter);
  } catch (const std::exception& error) {
    reporter.fail("error", fmt::format("failed: {}", error.what()));
  }
  reporter.pass();
}

// All that the child writes until it ends; false: it does not end in time.
bool read_records(int pipe, std::chrono::seconds limit, std::string& records) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit;
  std::array<char, 4096> buffer;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waited{.fd = pipe, .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, static_cast<int>(std::min<std::int64_t>(left, 1000))) <= 0) continue;
    const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
    if (got == 0) return true;
    if (got > 0) records.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

// Fills in what the records tell; false: none says how the child ended.
bool read_outcome(std::string_view records, Outcome& outcome) {
  while (!records.empty()) {
    const std::string_view record = records.substr(0, records.find('\0'));
    records.remove_prefix(std::min(record.size() + 1, records.size()));
    if (record.empty()) continue;
    const std::size_t between = std::min(record.find(kBetween), record.size());
    const std::string first(record.substr(1, between - 1));
    const std::string second(between < record.size() ? record.substr(between + 1) : "");
    switch (record[0]) {
      case kEntered:
        outcome.function = first;
        outcome.note = second;
        break;
      case kPassed:
        return true;
      case kSkipped:
        outcome.result = Outcome::Result::kSkipped;
        outcome.text = first;
        return true;
      default:
        outcome.result = Outcome::Result::kFailed;
        outcome.kind = first;
        outcome.text = second;
        return true;
    }
  }
  return false;
}

}  // namespace

void Reporter::send(char type, std::string_view first, std::string_view second) {
  // One write, so that records of two threads do not mix.
  std::array<char, 2048> record;
  const auto end =
      fmt::format_to_n(record.data(), record.size() - 1, "{}{}{}{}", type, first, kBetween, second);
  const std::size_t size = std::min(end.size, record.size() - 1);
  record[size] = 0;
  (void)!::write(pipe_, record.data(), size + 1);
}

void Reporter::enter(std::string_view function, std::string_view note,
                     std::span<const Watched> watched) {
  send(kEntered, function, note);
  watched_ = watched;
}

void Reporter::pass() {
  send(kPassed, "", "");
  ::_exit(0);
}

void Reporter::skip(std::string_view why) {
  send(kSkipped, why, "");
  ::_exit(0);
}

void Reporter::fail(std::string_view kind, std::string_view text) {
  send(kFailed, kind, text);
  ::_exit(1);
}

void Reporter::fail_at(const void* address) {
  std::array<char, 256> text;
  const auto fail_with = [&](std::string_view kind, auto format, const auto&... values) {
    const auto end = fmt::format_to_n(text.data(), text.size(), format, values...);
    fail(kind, {text.data(), std::min(end.size, text.size())});
  };
  for (const Watched& one : watched_) {
    const auto offset = one.memory->offset_of(address);
    if (!offset) continue;
    const std::int64_t bytes = one.memory->bytes();
    if (*offset < 0)
      fail_with("bounds", FMT_STRING("touches memory {} bytes before the begin of {}"), -*offset,
                one.name);
    if (*offset >= bytes)
      fail_with("bounds", FMT_STRING("touches byte {} of {}, which has {}"), *offset, one.name,
                bytes);
    fail_with("writes", FMT_STRING("writes to {}"), one.name);
  }
  if (reinterpret_cast<std::uintptr_t>(address) < kNullBytes)
    fail_with("crash", FMT_STRING("reads or writes near address 0: a null pointer, or one that a "
                                  "write past a local array has changed"));
  fail_with("crash", FMT_STRING("touches the address {}, which is not in an operand"), address);
  ::_exit(1);
}

Outcome run_in_child(std::chrono::seconds limit, const std::function<void(Reporter&)>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw ResourceError(fmt::format("[check-op] cannot make a pipe: {}", std::strerror(errno)));
  (void)std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::close(ends[0]);
    run_child(ends[1], body);
  }
  (void)::close(ends[1]);
  if (child < 0) {
    (void)::close(ends[0]);
    throw ResourceError(fmt::format("[check-op] cannot fork: {}", std::strerror(errno)));
  }
  std::string records;
  const bool has_ended = read_records(ends[0], limit, records);
  if (!has_ended) (void)::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  (void)::close(ends[0]);
  Outcome outcome;
  if (read_outcome(records, outcome)) return outcome;
  outcome.result = Outcome::Result::kFailed;
  outcome.kind = has_ended ? "crash" : "timeout";
  if (!has_ended)
    outcome.text = fmt::format("takes longer than {} s", limit.count());
  else if (WIFSIGNALED(status))
    outcome.text = fmt::format("crashes with SIG{}", ::sigabbrev_np(WTERMSIG(status)));
  else
    outcome.text = fmt::format("ends the process with exit code {}", WEXITSTATUS(status));
  return outcome;
}

}  // namespace anabatic::plugin::check
