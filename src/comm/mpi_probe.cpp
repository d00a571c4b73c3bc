// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "base/error.h"
#include "comm/mpi_world.h"

namespace anabatic::comm {
namespace {

constexpr int kPatienceMilliseconds = 20'000;

// "multiple 2", or after "!" why not.
std::string answer_of_child() {
  try {
    MpiWorld world;
    std::string answer = fmt::format("{} {}", world.thread_level(), world.num_slots());
    world.finalize();
    return answer;
  } catch (const std::exception& error) {
    return fmt::format("!{}", error.what());
  }
}

[[noreturn]] void run_child(int pipe_end) {
  // MPI prints what it has to complain of.
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, stream);
  const std::string answer = answer_of_child();
  const auto written = ::write(pipe_end, answer.data(), answer.size());
  ::_exit(written == static_cast<ssize_t>(answer.size()) ? 0 : 1);
}

// Empty if the child ends without an answer, or takes too long.
std::string read_answer(int pipe_end) {
  pollfd waits{.fd = pipe_end, .events = POLLIN, .revents = 0};
  if (::poll(&waits, 1, kPatienceMilliseconds) <= 0) return {};
  std::array<char, 1024> text{};
  const auto count = ::read(pipe_end, text.data(), text.size());
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : "";
}

}  // namespace

MpiProbe probe_mpi() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {.refusal = "no pipe to a child process"};
  const pid_t child = ::fork();
  if (child == 0) run_child(ends[1]);
  ::close(ends[1]);
  std::string answer;
  if (child > 0) {
    answer = read_answer(ends[0]);
    if (answer.empty()) ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  ::close(ends[0]);
  if (answer.empty()) return {.refusal = "MPI ends the process that starts it"};
  if (answer[0] == '!') return {.refusal = answer.substr(1)};
  const std::size_t space = answer.find(' ');
  MpiProbe probe{.thread_level = answer.substr(0, space)};
  if (space != std::string::npos)
    std::from_chars(answer.data() + space + 1, answer.data() + answer.size(), probe.num_slots);
  return probe;
}

}  // namespace anabatic::comm
