// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_heartbeat.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "device/clock.h"

namespace anabatic::comm::mpi {
namespace {

constexpr int kTag = 1;  // 0 is that of aborts
constexpr std::int64_t kPeriod = 250'000'000;
constexpr std::int64_t kLongestPause = 100'000'000;   // between two ticks, as far as it counts
constexpr std::int64_t kEndingSilence = 600'000'000;  // of a launcher's one second

}  // namespace

Heartbeat::Heartbeat(MPI_Comm control, std::int32_t rank, std::int32_t size, double silence_seconds)
    : control_(control),
      rank_(rank),
      silence_seconds_(silence_seconds),
      last_tick_(device::wall_nanoseconds()),
      last_sent_(last_tick_ - kPeriod) {
  own_.process = ::getpid();
  ::gethostname(own_.host.data(), own_.host.size() - 1);
  if (size > 1) neighbours_.push_back({.rank = (rank + 1) % size});
  if (size > 2) neighbours_.push_back({.rank = (rank + size - 1) % size});
  for (Neighbour& each : neighbours_) listen(each);
}

void Heartbeat::listen(Neighbour& neighbour) {
  check(MPI_Irecv(&neighbour.in, sizeof(Beat), MPI_BYTE, neighbour.rank, kTag, control_,
                  &neighbour.receive),
        "MPI_Irecv");
}

// To one that takes nothing, nothing more is sent.
void Heartbeat::send(Neighbour& neighbour) {
  if (neighbour.has_left || !has_ended(neighbour.send)) return;
  neighbour.out = own_;
  neighbour.has_farewell = own_.is_last != 0;
  check(MPI_Isend(&neighbour.out, sizeof(Beat), MPI_BYTE, neighbour.rank, kTag, control_,
                  &neighbour.send),
        "MPI_Isend");
}

std::optional<std::string> Heartbeat::tick(std::int64_t now_nanoseconds, const Header* last,
                                           bool is_ending) {
  const std::int64_t elapsed = std::min(now_nanoseconds - last_tick_, kLongestPause);
  last_tick_ = now_nanoseconds;
  if (last != nullptr) {
    own_.step = last->step;
    own_.number = last->number;
  }
  if (now_nanoseconds - last_sent_ >= kPeriod) {
    last_sent_ = now_nanoseconds;
    for (Neighbour& each : neighbours_) send(each);
  }
  for (Neighbour& each : neighbours_) {
    if (each.has_left) continue;
    each.silent_nanoseconds += elapsed;
    while (!each.has_left && has_ended(each.receive)) {
      each.last = each.in;
      each.silent_nanoseconds = 0;
      each.has_left = each.in.is_last != 0;
      if (!each.has_left) listen(each);
    }
    if (is_dead(each, is_ending)) return describe_death(each);
  }
  return std::nullopt;
}

bool Heartbeat::say_farewell() {
  own_.is_last = 1;
  bool is_said = true;
  for (Neighbour& each : neighbours_) {
    if (!each.has_farewell) send(each);
    is_said = is_said && (each.has_left || (each.has_farewell && has_ended(each.send)));
  }
  return is_said;
}

bool Heartbeat::is_dead(const Neighbour& neighbour, bool is_ending) const {
  if (1e-9 * static_cast<double>(neighbour.silent_nanoseconds) > silence_seconds_) return true;
  if (!is_ending || neighbour.last.process == 0) return false;
  const bool is_here = neighbour.last.host == own_.host;
  if (is_here && (::kill(static_cast<pid_t>(neighbour.last.process), 0) == 0 || errno != ESRCH))
    return false;
  return neighbour.silent_nanoseconds > (is_here ? kPeriod : kEndingSilence);
}

std::string Heartbeat::describe_death(const Neighbour& neighbour) const {
  const Beat& last = neighbour.last;
  const std::string who = last.process == 0
                              ? "never heard of"
                              : fmt::format("host {}, process {}", last.host.data(), last.process);
  const auto place_of = [](const Beat& beat) {
    return beat.step < 0 ? "before its first exchange"
                         : fmt::format("at exchange {} of step {}", beat.number, beat.step);
  };
  return fmt::format(
      "[ranks] rank {} ({}) has been silent for {:.1f} s: dead or stopped; it was {}, and rank {}, "
      "which tells this, {}",
      neighbour.rank, who, 1e-9 * static_cast<double>(neighbour.silent_nanoseconds), place_of(last),
      rank_, place_of(own_));
}

}  // namespace anabatic::comm::mpi
