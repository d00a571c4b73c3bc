// SPDX-License-Identifier: Apache-2.0
// Chooses the dtype of every activation. fp32: changes nothing. bf16: matrix products read and
// write bf16 and accumulate in fp32; the fp32 parameter remains the one that is updated.
//
//   %y: f32[8,4] = linear(%x, w)      ->   %y: bf16[8,4] = linear(%x, w.bf16)
//
// A matrix that linear, grouped_linear or embedding reads gets one derived state NAME.bf16, which
// all its readers share. Norm weights and biases are read in fp32. A linear whose output is read by
// a router or a loss, or is an output of the graph, keeps an f32 output. KV caches become bf16.
// Products of a unit that PassOptions::products keeps in fp32 read and write f32. int8 is bf16
// here: quantize_products does the rest. Linear in nodes. It runs first: gradients take their
// dtypes from the activations.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kPrecision;

}  // namespace anabatic::passes
