// SPDX-License-Identifier: Apache-2.0
// Runs one kernel row on one call under hostile conditions: outputs and workspace start as NaN,
// guard bytes stand around every buffer, inputs must stay as they are. A row that tells a watch of
// its states runs once more with one, which must change no bit and hear of every word.
#pragma once
#include <string>

#include "ir/op_schema.h"
#include "support/reference.h"

namespace anabatic::testing {

struct RunOptions {
  int num_threads = 1;
  std::span<const Values> before = {};  // not empty: `+=` onto these
  bool is_watched = false;              // the second run of a row that has a watch
  bool in_place = false;                // outputs lie in the inputs that the op lets them overwrite
};

struct RunResult {
  std::vector<HostTensor> outputs;
  std::string violation;  // empty: stayed within its buffers
};

// A row of `ref`, which gets no thread team.
bool is_reference(const kernels::Kernel& kernel);

RunResult run_kernel(const kernels::Kernel& kernel, const ir::OpSchema& schema, const OpCall& call,
                     const RunOptions& options = {});

// What `kernel` says to this call, on this machine or on one that has every instruction set.
kernels::Support supports(const kernels::Kernel& kernel, const OpCall& call);
kernels::Support supports_on_any_machine(const kernels::Kernel& kernel, const OpCall& call);

// Whether `output` may lie in the buffer of an input of this call, and in which; -1 for none.
int aliased_input(const ir::OpSchema& schema, const OpCall& call, std::size_t output);

}  // namespace anabatic::testing
