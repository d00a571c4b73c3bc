// SPDX-License-Identifier: Apache-2.0
// Tells that a rank has died or stopped: neighbours in a ring of ranks send one another signs of
// life. Everything is called under MPI's mutex.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/message.h"
#include "comm/mpi_calls.h"

namespace anabatic::comm::mpi {

class Heartbeat {
 public:
  // `silence_seconds` after which a neighbour counts as dead.
  Heartbeat(MPI_Comm control, std::int32_t rank, std::int32_t size, double silence_seconds);

  // Sends and receives. Only time between ticks counts as silence, and of a long pause between two
  // of them only a part: this process may have been stopped itself. Returns who is dead, with all
  // that is known of it. `last`: the last exchange that this rank started; null: none yet.
  // `is_ending`: a launcher is about to kill all, perhaps because one has died. Then a short
  // silence is enough, unless the neighbour's process is there on this host.
  std::optional<std::string> tick(std::int64_t now_nanoseconds, const Header* last,
                                  bool is_ending = false);

  // This rank leaves in good order: its neighbours no longer listen. True when that is sent.
  bool say_farewell();

  template <class F>
  void for_each_receive(const F& visit) {
    for (Neighbour& each : neighbours_) visit(each.receive);
  }
  template <class F>
  void for_each_send(const F& visit) {
    for (Neighbour& each : neighbours_) visit(each.send);
  }

 private:
  struct Beat {
    std::int64_t process = 0, step = -1;  // step -1: no exchange yet
    std::uint32_t number = 0, is_last = 0;
    std::array<char, 64> host{};
  };
  struct Neighbour {
    std::int32_t rank = 0;
    Beat in, out, last;
    MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
    std::int64_t silent_nanoseconds = 0;
    bool has_left = false, has_farewell = false;
  };

  void listen(Neighbour& neighbour);
  void send(Neighbour& neighbour);
  bool is_dead(const Neighbour& neighbour, bool is_ending) const;
  std::string describe_death(const Neighbour& neighbour) const;

  MPI_Comm control_;
  std::int32_t rank_;
  double silence_seconds_;
  Beat own_;
  std::vector<Neighbour> neighbours_;
  std::int64_t last_tick_ = 0, last_sent_ = 0;
};

}  // namespace anabatic::comm::mpi
