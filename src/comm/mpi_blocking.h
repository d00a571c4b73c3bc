// SPDX-License-Identifier: Apache-2.0
// MPI's blocking collectives over all ranks, which `bench exchange` compares with ours.
// Unsupported in a build without MPI; MpiWorld has to be there.
#pragma once
#include <cstddef>
#include <cstdint>

namespace anabatic::comm {

void mpi_barrier();

// `count` elements a rank: `output` is this rank's part of the sum of all inputs.
void mpi_reduce_scatter_block(const float* input, float* output, std::int64_t count);

// In place: `count` elements, summed over all ranks.
void mpi_all_reduce(float* output, std::int64_t count);

// In place: `count` elements of each rank, this one's already there.
void mpi_all_gather(float* output, std::int64_t count);

// `count` elements for each rank, and as many from each.
void mpi_all_to_all(const float* input, float* output, std::int64_t count);

}  // namespace anabatic::comm
