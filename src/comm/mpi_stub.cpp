// SPDX-License-Identifier: Apache-2.0
// Stands in for the mpi_*.cpp in a build without MPI.
#include "base/error.h"
#include "comm/mpi_blocking.h"
#include "comm/mpi_world.h"

namespace anabatic::comm {
namespace {

[[noreturn]] void refuse_mpi() {
  throw Unsupported(
      "[mpi] this anabatic was built without MPI; install it (Debian: libopenmpi-dev) and build "
      "with -DANABATIC_MPI=ON");
}

}  // namespace

std::string mpi_library() { return {}; }
MpiWorld::MpiWorld() { refuse_mpi(); }
std::unique_ptr<Transport> MpiWorld::make_transport(const MpiTransportOptions&) { refuse_mpi(); }
bool MpiWorld::finalize() { refuse_mpi(); }
void mpi_barrier() { refuse_mpi(); }
void mpi_reduce_scatter_block(const float*, float*, std::int64_t) { refuse_mpi(); }
void mpi_all_reduce(float*, std::int64_t) { refuse_mpi(); }
void mpi_all_gather(float*, std::int64_t) { refuse_mpi(); }
void mpi_all_to_all(const float*, float*, std::int64_t) { refuse_mpi(); }
MpiProbe probe_mpi() { return {.refusal = "built without MPI"}; }
std::int64_t expected_mpi_bytes(std::int32_t, bool) { return 0; }

}  // namespace anabatic::comm
