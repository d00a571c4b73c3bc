// SPDX-License-Identifier: Apache-2.0
// Which method (comm/methods.h) does each exchange of a run, and why. All ranks choose alike: by
// the keys, which are the same for all, and by what the first rank has measured.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/methods.h"
#include "runtime/program.h"
#include "spec/mesh.h"
#include "train/ranks/measured_exchanges.h"
#include "train/run_config.h"

namespace anabatic::train {

struct MethodPolicy {
  std::string reduction = "ordered";  // parallel.reduction, of exchanges that add
  std::string exchange = "ordered";   // parallel.exchange, of the others
  std::string refusal{};              // why none can be MPI's own; empty: some can
  std::vector<MeasuredExchange> measured{};
};

// How the ranks of a run exchange: processes of a launcher, or threads of this one. It goes by what
// this machine has measured. Unsupported where parallel.exchange asks for MPI and there is none.
MethodPolicy method_policy(const RunConfig& run, bool has_processes);

struct MethodChoice {
  comm::Method method{};
  std::string reason;
};
// `bytes`: of the tensor.
MethodChoice choose_method(const comm::ExchangeProblem& problem, std::int64_t bytes,
                           const MethodPolicy& policy);

// Chooses for all exchanges of a program. Returns how many have another method than before.
std::int64_t choose_methods(runtime::Program& program, const spec::Mesh& mesh,
                            const MethodPolicy& policy);

// The groups of this rank along all axes of the mesh, in which collectives may run.
std::vector<std::vector<std::int32_t>> collective_groups(const spec::Mesh& mesh, std::int32_t rank);

}  // namespace anabatic::train
