// SPDX-License-Identifier: Apache-2.0
// Without PassOptions::pack_transposed no second packing of a weight is kept between steps. With it
// none is kept of a weight in PassOptions::on_disk. Instead the backward packs it from the first
// packing, in phase `recompute`, before each product that reads it.
//
//   state %t "NAME.packed_transposed" of "NAME"        %t  = pack(%p)  {layout="panels_transposed"}
//   %dx = linear_input_gradient(%dy, %t)          ->   %dx = linear_input_gradient(%dy, %t)
//
// with %p the packing that the forward reads. Equal bits. Saves as many bytes as the weights have
// in that packing, for one pass over them in every micro-batch.
//
// Linear in nodes and states. It runs after the fusions, which look for weights that are states,
// and before apply_optimizer, which refreshes every derived state.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kPackAgain;

}  // namespace anabatic::passes
