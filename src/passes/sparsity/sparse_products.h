// SPDX-License-Identifier: Apache-2.0
// Once masks are final (SparsityOptions::is_final), products of a weight with a mask read the
// layout of its present blocks, or give the gradient of these alone:
//
//   state %c "w.bf16": bf16[N,K]                state %i "w.index": i32[P+1+B]
//   %y = linear(%x, %c)                         state %v "w.sparse": bf16[B,S]
//   %dx = linear_input_gradient(%dy, %c)   ->   %y = sparse_linear(%x, %v, %i)
//   %dw = linear_weight_gradient(%x, %dy)       %dx = sparse_linear_input_gradient(%dy, %t, %j)
//                                               %dw = sparse_linear_weight_gradient(%x, %dy, %i)
//
// with %t "w.sparse_transposed" and %j "w.index_transposed". Each direction is chosen by itself:
// where PassContext::seconds has a lower price, with the packing of values after each update, or as
// the entry's threshold says. A direction that stays dense reads the weight, whose absent elements
// are 0. A copy that nothing else reads disappears. An update reads gradients by the mask, so that
// %dw is written where it is present alone (attribute present_only). `--explain-dispatch` lists
// each weight with its density and break-even, or its reason.
//
// Equal bits where operands are finite: absent blocks would have added zeroes. Linear in nodes
// times masks. It runs after differentiate, so that the backward is there, and before pack_weights,
// panel_states and split_parameters, which leave such a weight in f32 rows.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kSparseProducts;

// Whether a value is a weight with a mask, or is derived from one. Passes that round elsewhere than
// without them leave its products alone, final masks or not: sparse products are in none of their
// patterns, and the choice between sparse and dense ones must change no bit.
bool has_mask(const ir::Graph& graph, ir::ValueId weight);

// Whether a weight has a sparse layout: what derives it reads f32 rows.
bool has_sparse_values(const ir::Graph& graph, Name parameter);

}  // namespace anabatic::passes
