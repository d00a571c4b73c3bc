// SPDX-License-Identifier: Apache-2.0
// Dense products apply what is in front of them, a norm or dropout, as they copy rows of x: in the
// forward and in the weight gradient. Normalised or dropped rows are never stored.
//
//   %h, %y = add_rms_norm(%a, w, %b)        ->   %h, %s = add_norm_statistics(%a, %b)
//   %q = linear(%y, wq)                          %q = linear(%h, wq, %s, w) {norm="rms"}
//   %d = linear_weight_gradient(%y, %dq)         %d = linear_weight_gradient(%h, %dq, %s, w) {...}
//
// So do norms without a sum, layer norms with their bias, and products with an activation or with
// several weights. The norm's own gradients read %h anyway. So a step keeps two bytes less for each
// element of %y in bf16, and four bytes more for each row: its statistics. Bits stay equal.
//
// A norm is fused where the backward reads it and every reader is such a product, in f32, bf16 or
// int8. Norm and products must take no longer so, by PassContext::seconds. In f32 and bf16 each
// block of a result normalises the rows that it copies, and more threads make more blocks of a
// weight gradient. Int8 products normalise rows as they quantise them, once a call. With
// PassOptions::norms_in_products a norm is fused at any price, for its bytes. Norms of heads, and
// of rows that experts gather, are left as they are: each row is copied there for each of its
// experts, and normalising it as often takes longer.
//
// Dropout of what adapters read comes first: %y = dropout(%x, draws) goes where only products of
// f32 or bf16 without an activation read it, and the backward does. They take {dropout_rate,
// dropout_site} and draws, and draw again for each copy of a row. Its price decides likewise.
//
// Measured on one thread of a shared Zen 5 (AVX512-BF16), bf16, a norm and one product with all
// gradients, against both apart in turn, CPU time: 2048 rows, 576 to 192, 576 and 1536: 0.996x,
// 0.998x and 1.001x; 1024 to 3072: 1.006x; 1024 rows, 2048 to 2048: 1.014x. On two threads: 1.05x,
// 1.03x, 1.01x, and steps of a dense model of 576 columns take as long as without. In int8, 2048
// rows of 576 to 960 and 3072: 1.03x and 1.01x, on one thread as on two. To compute the norm twice,
// once for the backward, takes as long.
//
// Linear in nodes. It takes the norms that fuse_norm_residual makes, and the products of all
// fusions before it.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseNormLinear;

}  // namespace anabatic::passes
