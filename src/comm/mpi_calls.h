// SPDX-License-Identifier: Apache-2.0
// What the sources that call MPI share. Only mpi_*.cpp may include it: no other header of comm
// names mpi.h.
#pragma once
#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace anabatic::comm::mpi {

// Thread level SERIALIZED: a thread holds it during any call, and no call under it may block.
std::mutex& mutex();

// CommError with the name of the call and MPI's text. Under the mutex.
void check(int code, const char* call);

// Whether the request has ended, which makes it MPI_REQUEST_NULL. Under the mutex.
bool has_ended(MPI_Request& request);

// A communicator of all ranks that returns errors. All ranks call it in the same order; takes the
// mutex.
MPI_Comm duplicate_world();

// Requests that can never end any more, as after an abort: with one, MPI must not be finalized.
std::atomic<std::int64_t>& num_abandoned();

}  // namespace anabatic::comm::mpi
