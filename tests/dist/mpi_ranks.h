// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of a test program that mpirun started.
#pragma once
#include <vector>

#include "comm/mpi_world.h"

namespace anabatic::testing {

// MPI of this process, started at the first call and ended after the last test; null where no
// launcher started more than one. From then on every rank runs the same tests.
comm::MpiWorld* mpi_world();

// That one, or none: values of a suite's parameter.
std::vector<comm::MpiWorld*> mpi_worlds();

}  // namespace anabatic::testing
