// SPDX-License-Identifier: Apache-2.0
// With policy int8, products of matrices are int8 products (ARCHITECTURE.md). Their weights
// become derived states in tiles of 128 x 128, one for each direction, and the attribute `fallback`
// says when blocks of x have second values:
//
//   state %c "w.bf16": bf16[N,K]              state %p "w.packed": i8_bf16_128x128[N,K]@panels
//   %y = linear(%x, %c)                       %y = linear(%x, %p)  {fallback=64}
//   %dx = linear_input_gradient(%dy, %c)  ->  %dx = linear_input_gradient(%dy, %t)
//   %dw = linear_weight_gradient(%x, %dy)     %dw = linear_weight_gradient(%x, %dy)  {fallback=64}
//
// with %t "w.packed_transposed". A head with its loss and gradients gets the attribute alone: it
// quantises the bf16 weight itself. A weight gradient is that of a product whose weight it
// contributes to. A copy that nothing else reads disappears. Packings of a frozen weight are made
// of its upper 16 bits (quantize_frozen). bf16 stays where a weight is of an adapter, or is frozen
// in a format of its own, a result is f32 (routers, a head that is not fused with its loss), a
// matrix has fewer than 32 rows or columns, or PassOptions::products keeps a unit or has it as
// critical. A weight with such a product has no int8 one.
//
// It changes results. Linear in nodes times states. It runs after differentiate, so that the
// backward is there, and after fuse_head_loss, which takes the head. It runs before pack_weights,
// panel_states and split_parameters, which leave such a weight alone: the parameter is in rows, f32
// where it is trained.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kQuantizeProducts;

}  // namespace anabatic::passes
