// SPDX-License-Identifier: Apache-2.0
// Quantization-aware training: products of PassOptions::quantization read weights that have the
// values of its grid alone. The parameter gets the grid, and what is derived from it too:
//
//   state %w "w": f32[N,K] parameter        state %w "w": f32[N,K] parameter grid q4_0
//   state %c "w.bf16": bf16[N,K] copy   ->  state %c "w.bf16": bf16[N,K] copy grid q4_0
//
// Whatever computes such a state is `fake_quantize` (derive.h), after each update and after
// loading. A product that read the parameter itself, in fp32, reads a copy "w.rows" in place of it.
// So the gradient of the copy is credited to the parameter, unchanged: straight-through. Routers
// stay as they are. A weight that others read too, as a tied embedding, is refused.
//
// Under an adapter weights are frozen. They get the grid, and the adapter's own do not. Their
// values are rounded once, as they are loaded (train/lora/grid_rows.h). So products read the
// parameter as before, and what is derived from it is a plain copy, without a grid.
//
// With QuantizationOptions::rounds_activations these products read `fake_quantize_tokens` of their
// rows. Rows of experts are rounded before they are gathered.
//
// It changes results. Linear in nodes times states. It runs after precision, which makes copies,
// and before the passes that pack, arrange or split parameters and take the grid along.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFakeQuantize;

}  // namespace anabatic::passes
