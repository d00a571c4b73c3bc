// SPDX-License-Identifier: Apache-2.0
// Integer division that rounds up, and the next multiple. `a` must be at least 0, `b` above 0, and
// a + b must not overflow.
#pragma once
#include <concepts>

namespace anabatic {

// Always inlined: no copy for one instruction set can stand in for the whole program's.
template <std::integral A, std::integral B>
[[gnu::always_inline]] constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// The smallest multiple of `b` that is at least `a`.
template <std::integral A, std::integral B>
[[gnu::always_inline]] constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

}  // namespace anabatic
