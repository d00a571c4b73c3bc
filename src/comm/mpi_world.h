// SPDX-License-Identifier: Apache-2.0
// MPI of this process: which library, its start and its end. A build without MPI has the same
// functions (mpi_stub.cpp).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace anabatic::comm {

// "Open MPI v4.1.4, MPI 3.1"; empty in a build without MPI. Does not start MPI.
std::string mpi_library();

struct MpiTransportOptions {
  // Ranks whose neighbour in a ring gives no sign of life for so long end all ranks with its name.
  // 0: they do not listen, as where somebody blocks inside MPI.
  double silence_seconds = 3;
  bool packs_rows = true;  // false: no exchange sends rows by an index, and none has buffers for it
  // This rank's groups for collectives. The n-th ones of all ranks are the world in parts.
  std::vector<std::vector<std::int32_t>> groups{};
  std::int64_t most_count = kMostCount;  // of elements in a call of a collective
};

// For a process that a launcher may end: it asks all to end once one of them has died, and kills
// them a second later.
struct EndingOptions {
  std::function<bool()> is_asked{};  // by a signal; called 20 times a second
  // A rank has died, and this process was asked to end: there is time to say so and for nothing
  // else. Called on any thread, before a call throws the text.
  std::function<void(const std::string& text)> on_death{};
};

// One a process, as MPI starts once. Its calls are made under one mutex, from any thread.
class MpiWorld {
 public:
  // Starts MPI for threads that take turns (MPI_THREAD_SERIALIZED). Unsupported in a build without
  // MPI, or where the library cannot do that. Outside a launcher there is one rank.
  MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  std::int32_t rank() const { return rank_; }
  std::int32_t size() const { return size_; }
  std::int32_t num_on_node() const { return num_on_node_; }  // ranks that share this machine
  std::int32_t num_slots() const { return num_slots_; }      // of the launcher; 0: it does not say
  const std::string& thread_level() const { return thread_level_; }  // "multiple"
  // By which this process has grown at the start of MPI and of the transports so far.
  std::int64_t resident_bytes() const { return resident_bytes_; }

  // For transports that are made afterwards.
  void set_ending(EndingOptions ending) { ending_ = std::move(ending); }

  // All ranks make theirs in the same order. Each is a world of its own: messages and aborts of one
  // do not reach another.
  std::unique_ptr<Transport> make_transport(const MpiTransportOptions& options = {});

  // Ends MPI; all ranks do so. False, and MPI goes on, while a request is open: after an abort a
  // process ends without.
  bool finalize();

 private:
  std::int32_t rank_ = 0, size_ = 1, num_on_node_ = 1, num_slots_ = 0;
  std::int64_t resident_bytes_ = 0;
  std::string thread_level_;
  EndingOptions ending_;
};

struct MpiProbe {
  std::string thread_level;
  std::int32_t num_slots = 0;  // as MpiWorld::num_slots()
  std::string refusal;         // why MPI does not start; empty: it does
};
// Starts MPI in a child process and ends it there: where MPI fails it ends the process. To be
// called while this process has one thread. Under a launcher all ranks call it.
MpiProbe probe_mpi();

// What MPI will take of a process of so many: the library, as measured, and the buffers that a
// transport has in addition to those of exchanges.
std::int64_t expected_mpi_bytes(std::int32_t num_ranks, bool packs_rows = true);

}  // namespace anabatic::comm
