// SPDX-License-Identifier: Apache-2.0
// Runs every kernel row that takes a call, for tests of what must hold whatever the row.
#pragma once
#include <gtest/gtest.h>

#include "ops/kernel_runner.h"
#include "ops/table.h"

namespace anabatic::testing {

// Outputs of the first row that takes the call, and of `ref`: each identity is checked on both.
inline std::vector<std::vector<Values>> run_all(const OpCall& call) {
  std::vector<std::vector<Values>> results;
  for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
    if (!supports(*kernel, call)) continue;
    const RunResult result = run_kernel(*kernel, *ops::find_op(call.op), call);
    EXPECT_EQ(result.violation, "") << kernel->name;
    std::vector<Values> outputs;
    for (const HostTensor& output : result.outputs) outputs.push_back(output.values());
    results.push_back(std::move(outputs));
  }
  EXPECT_FALSE(results.empty()) << call.op;
  return results;
}

}  // namespace anabatic::testing
