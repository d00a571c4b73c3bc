// SPDX-License-Identifier: Apache-2.0
// Rows for ops with f16 operands that no other row takes: they run a row of the same op in f32. Its
// operands of 16 bits are widened into the workspace before it, and its results are rounded to
// nearest even after it. So results have the bits of the f32 row, rounded once.
//
// They cost f32 copies of a call's operands. The rows of ops that every step spends much time in
// take f16 themselves.
#pragma once
#include <string_view>

namespace anabatic::kernels::cpu {

// Whether a row is such a one: its name ends with "_widened", and it refuses calls without f16.
bool is_widened(std::string_view row);

}  // namespace anabatic::kernels::cpu
