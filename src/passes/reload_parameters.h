// SPDX-License-Identifier: Apache-2.0
// Parameters that PassOptions::on_disk names are in memory only while something reads them. Each
// node of the forward and the backward reads its own copy, which the planner has the disk read.
//
//   %y  = linear(%x, %w)            forward         %w1 = reload(%w)               forward
//   %t  = pack(%w)                  recompute       %y  = linear(%x, %w1)          forward
//   %v  = optimizer_step(%w, ...)   update     ->   %w2 = reload(%w)               recompute
//                                                   %t  = pack(%w2)                recompute
//                                                   %v  = optimizer_step(%w, ...)  update
//
// The update reads and writes the state itself, through a window (plan/swap.h). Parameters that are
// outputs, and those that only their update reads, are not changed. Equal bits. Saves the bytes of
// the parameter, and reads it from disk once for each reader.
//
// Linear in nodes. It runs after common_subexpression, which would merge the copies, and before
// recompute, which makes separate copies for recomputed nodes.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kReloadParameters;

}  // namespace anabatic::passes
