// SPDX-License-Identifier: Apache-2.0
// Rows for ops with f16 operands that no other row takes: they run a row of the same op in f32. Its
// operands of 16 bits are widened into the workspace before it, and its results are rounded to
// nearest even after it. So results have the bits of the f32 row, rounded once.
//
// Ops whose rows of operands are independent go in pieces of rows, which stay in the caches on
// their way. A piece is a function of the operands' types alone, as sums over pieces have to be.
#pragma once
#include <string_view>

namespace anabatic::kernels::cpu {

// Whether a row is such a one: its name ends with "_widened", and it refuses calls without f16.
bool is_widened(std::string_view row);

}  // namespace anabatic::kernels::cpu
