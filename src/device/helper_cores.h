// SPDX-License-Identifier: Apache-2.0
// Where threads run that move bytes while others compute.
#pragma once

namespace anabatic::device {

// Keeps the calling thread off the first `num_compute_threads` cores that it may use, which a
// ThreadTeam takes. No effect where there are no others. 0: it stays wherever it may run.
void keep_off_compute_cores(int num_compute_threads);

}  // namespace anabatic::device
