// SPDX-License-Identifier: Apache-2.0
// What every pass may read besides the graph. Passes write neither of these.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "ir/op_schema.h"
#include "spec/decisions.h"
#include "spec/state.h"
#include "spec/training.h"
#include "tensor/tensor_type.h"

namespace anabatic::passes {

// Of states by name.
struct HeldState {
  spec::StateRole role = spec::StateRole::kParameter;
  Layout layout = kRowMajor;
};
using HeldStates = std::map<std::string, HeldState, std::less<>>;
using StateNames = std::set<std::string, std::less<>>;
// By parameter, a stack of experts: those at which a slice of its moments begins.
using ExpertCuts = std::map<std::string, std::set<std::int64_t>, std::less<>>;

struct PassOptions {
  spec::Precision precision = spec::Precision::kFp32;
  spec::OptimizerOptions optimizer{};
  bool pack_transposed = true;     // keep a second packing of weights; else the backward makes it
  bool with_update = true;         // false: gradients only, no optimizer
  std::int64_t micro_batches = 0;  // of a step; 0: not known
  std::int64_t slice_bytes = 0;  // most of a moment that one update takes (slice_optimizer); 0: all
  // Where slices begin beside those that `slice_bytes` makes. null: nowhere.
  const ExpertCuts* expert_cuts = nullptr;
  // What other programs hold of the states of this one. null: nothing.
  const HeldStates* held_states = nullptr;
  // Parameters that stand on disk between their readers (reload_parameters). null: none.
  const StateNames* on_disk = nullptr;
  const spec::Decisions* decisions = nullptr;  // null: none
};

struct PassContext {
  PassOptions options{};
  // The op table that builders and parsers of the pass use; never null when a pass runs.
  const ir::OpSchema* (*find_op)(std::string_view name) = nullptr;
};

}  // namespace anabatic::passes
