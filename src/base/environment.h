// SPDX-License-Identifier: Apache-2.0
// Every environment variable that Anabatic reads. They limit instruction sets, or tell where caches
// are, how threads wait and who started the process; options are in the run config.
#pragma once
#include <string>
#include <vector>

namespace anabatic::environment {

// ANABATIC_MAX_ISA: portable | avx2 | avx_vnni | avx512f | avx512_vnni | avx512_bf16 | amx_bf16;
// "" for no limit.
// InvalidArgument for another value.
std::string max_isa();

// XDG_CACHE_HOME, or .cache in HOME; "" if neither is set. Measurements of the machine are stored
// there.
std::string cache_directory();

// Whether OMP_WAIT_POLICY is PASSIVE, in any case of letters: waiting threads sleep. Other values
// are no business of ours.
bool waits_passively();

// What launchers of many processes set: the variable of their number, its value, and the place of
// this process among them. Texts are "" where not set. Open MPI: OMPI_COMM_WORLD_SIZE; MPICH and
// its kin: PMI_SIZE; a step of Slurm: SLURM_STEP_NUM_TASKS.
struct Launcher {
  std::string variable, size, rank;
};
std::vector<Launcher> launchers();

}  // namespace anabatic::environment
