// SPDX-License-Identifier: Apache-2.0
// Parameters that PassOptions::on_disk names stand in memory only where something reads them: each
// node of the forward and the backward reads a copy of its own, which the planner has the disk
// bring for it.
//
//   %y  = linear(%x, %w)            forward         %w1 = reload(%w)               forward
//   %t  = pack(%w)                  recompute       %y  = linear(%x, %w1)          forward
//   %v  = optimizer_step(%w, ...)   update     ->   %w2 = reload(%w)               recompute
//                                                   %t  = pack(%w2)                recompute
//                                                   %v  = optimizer_step(%w, ...)  update
//
// The update reads and writes the state itself, through a window (plan/swap.h). Parameters that are
// results, and those that only their update reads, stay as they are. Equal bits. Saves the bytes of
// the parameter, for its way from the disk once a reader.
//
// Linear in nodes. It stands behind common_subexpression, which would merge the copies, and ahead
// of recompute, which makes those anew that what is made again reads.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kReloadParameters;

}  // namespace anabatic::passes
