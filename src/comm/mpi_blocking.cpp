// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_blocking.h"

#include <limits>

#include "base/error.h"
#include "comm/mpi_calls.h"

namespace anabatic::comm {
namespace {

int to_int(std::int64_t count) {
  ANABATIC_REQUIRE(count >= 0 && count <= std::numeric_limits<int>::max(),
                   "[mpi] expected a count of elements that fits an int, got {}", count);
  return static_cast<int>(count);
}

}  // namespace

void mpi_barrier() {
  const std::lock_guard lock(mpi::mutex());
  mpi::check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

void mpi_reduce_scatter_block(const float* input, float* output, std::int64_t count) {
  const std::lock_guard lock(mpi::mutex());
  mpi::check(
      MPI_Reduce_scatter_block(input, output, to_int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
      "MPI_Reduce_scatter_block");
}

void mpi_all_reduce(float* output, std::int64_t count) {
  const std::lock_guard lock(mpi::mutex());
  mpi::check(MPI_Allreduce(MPI_IN_PLACE, output, to_int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
             "MPI_Allreduce");
}

void mpi_all_gather(float* output, std::int64_t count) {
  const std::lock_guard lock(mpi::mutex());
  mpi::check(
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, output, to_int(count), MPI_FLOAT, MPI_COMM_WORLD),
      "MPI_Allgather");
}

void mpi_all_to_all(const float* input, float* output, std::int64_t count) {
  const std::lock_guard lock(mpi::mutex());
  mpi::check(MPI_Alltoall(input, to_int(count), MPI_FLOAT, output, to_int(count), MPI_FLOAT,
                          MPI_COMM_WORLD),
             "MPI_Alltoall");
}

}  // namespace anabatic::comm
