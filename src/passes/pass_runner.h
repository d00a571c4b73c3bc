// SPDX-License-Identifier: Apache-2.0
// Runs a list of passes: checks facts, "changed" and the graph, and dumps each pass.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "passes/pass.h"

namespace anabatic::passes {

struct RunnerOptions {
  std::set<std::string, std::less<>> disabled{};  // names of passes to skip
  std::string dump_directory{};                   // empty: none; it is created
  std::vector<std::string> facts{};  // facts that are established before the first pass
  // False for a graph that is only tried: neither it nor facts and "changed" are checked. A caller
  // that keeps the graph verifies it.
  bool checks = true;
};

struct PassReport {
  std::string name;
  bool changed = false, skipped = false;
};

// Runs `passes` in order on `graph`. Dumps go to 00_input.ir, then NN_name.ir after each pass that
// ran, NN counting from 01 in the list. InvalidArgument: a disabled name that is unknown (with the
// nearest one) or required, or a fact missing because a pass is disabled. InternalError naming the
// pass: a missing fact otherwise, a graph that the verifier refuses, a wrong "changed".
std::vector<PassReport> run_passes(ir::Graph& graph, std::span<const Pass> passes,
                                   const PassContext& context, const RunnerOptions& options = {});

}  // namespace anabatic::passes
