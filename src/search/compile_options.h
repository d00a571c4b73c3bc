// SPDX-License-Identifier: Apache-2.0
// What a graph is compiled for, and what the compiler may do to it.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "kernels/kernel.h"
#include "ops/table.h"
#include "passes/pass.h"
#include "plan/memory_decider.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "spec/decisions.h"
#include "spec/mesh.h"
#include "spec/sparsity.h"
#include "spec/training.h"

namespace anabatic::search {

// Whether a budget may put the optimizer's state on disk, in addition to disk.optimizer_state.
struct DiskChoice {
  bool is_allowed = false;
  std::string refusal{};             // if not, why: for refusals of the budget
  bool may_take_masters = false;     // the lower 16 bits of parameters too
  bool may_take_parameters = false;  // and the parameters that the model reads
  std::int64_t free_bytes = 0;       // of the disk
  std::int64_t beside_bytes = 0;     // what the budget must hold for the disk, outside the program
  std::int64_t num_micro_batches = 1;  // of a step, to weigh waits against recomputation
};

struct CompileOptions {
  spec::Precision precision = spec::Precision::kFp32;
  spec::ProductOptions products{};  // of which products it is not the precision
  spec::QuantizationOptions quantization{};
  spec::SparsityOptions sparsity{};
  bool training = true;                // false: forward only
  spec::OptimizerOptions optimizer{};  // used when training and with_update
  // That of frozen matrices which products alone read (pass quantize_frozen); none: they are as
  // others.
  std::optional<BlockFormat> frozen_format{};
  // Keep a second packing of weights for input gradients; otherwise the backward packs them.
  bool pack_transposed = true;
  // Keep packings of weights between steps; otherwise forward and backward make them.
  bool keep_packings = true;
  // Products apply every norm that they can, which takes bytes from the frame. Otherwise where the
  // price is lower, and where a budget needs the bytes.
  bool norms_in_products = false;
  // Micro-batches of a step; 0: not known. With one, gradients share the frame's bytes. With more,
  // a separate pass computes the gradient's norm.
  std::int64_t micro_batches = 0;
  std::int64_t leaves = 1;  // into which these are divided (spec/step.h)
  bool with_update = true;  // false: gradients only (the `gradients` verb); gradient states stay
                            // readable as outputs
  std::set<std::string, std::less<>>
      disabled_passes{};  // optional passes only; InvalidArgument naming an unknown or required one
  bool trivial_planners = false;
  plan::DiskOptions disk{};    // used when training and with_update
  DiskChoice disk_choice{};    // likewise, under a budget
  std::string only_kernels{};  // "ref": only rows whose name starts with it; empty: all
  // The ops and rows that there are: ours, and those of a run's plugins (plugin/plugins.h).
  ir::FindOp find_op = ops::find_op;
  kernels::FindKernels find_kernels = kernels::candidates;
  std::string dump_directory{};      // empty: none; else every artifact is written there: the graph
                                     // after each pass, plan.txt, program.txt
  passes::HeldStates held_states{};  // states that other programs hold already
  bool streams_weights = false;      // passes::PassOptions; of forward programs
  passes::StateNames states_on_disk{};  // the part of them on disk; for programs that do not train
  plan::MemoryOptions memory{};         // of training programs
  // Decisions of a plan for almost this budget. If their places of states fit this one too, no
  // others are tried.
  std::optional<spec::Decisions> warm_start{};
  plan::OpEfficiency efficiency = plan::default_efficiency();  // prices of choices
  spec::Mesh mesh{};                                           // of the ranks that share a step
  std::int32_t rank = 0;                                       // this one of them
  double expert_capacity = 0;                                  // spec::Decisions::expert_capacity
  bool shards_optimizer = false;   // each rank updates a part of each parameter
  bool overlaps_exchanges = true;  // false: each is awaited at once
  bool checks_passes = true;       // false: another rank has, whose passes do the same
  bool explain_dispatch = false;   // prints each rejection to the log
};

}  // namespace anabatic::search
