// SPDX-License-Identifier: Apache-2.0
// A copy of rows by a map that feeds an exchange becomes the exchange's row map: the rows are sent
// from where they are, and the copy is not stored.
//
//   %r = permute(%x, %map) {top_k=k}
//   %y = exchange_rows(%r, %s, %t)                     ->  exchange_rows(%x, %s, %t, %map)
//   {top_k=k}
//
//   %r = permute_gradient(%x, %slots) {top_k=1}
//   %y = exchange_rows(%r, %s, %t)                     ->  exchange_rows(%x, %s, %t, %slots)
//   {top_k=1}
//
// Only where all readers of %r are such exchanges; otherwise the copy is there anyway. Equal bits.
//
// Linear in nodes. It runs after move_router_weight, which makes the combine of received rows such
// a copy.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseExchangeRows;

}  // namespace anabatic::passes
