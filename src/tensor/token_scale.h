// SPDX-License-Identifier: Apache-2.0
// Int8 with one scale for a token: how `fake_quantize_tokens` finds it.
#pragma once
#include <cmath>
#include <limits>

namespace anabatic {

// A token becomes round(x · inverse) · scale.
struct TokenScale {
  float scale, inverse;
};

// By the largest magnitude of the token, or what is not finite in it. Objects for an instruction
// set have no symbols in common, so it is inlined.
[[gnu::always_inline]] inline TokenScale token_scale(float largest) {
  constexpr float kSmallest = 0x1p-100f;  // the inverse of a smaller scale may be infinite
  if (!std::isfinite(largest)) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  if (largest < kSmallest) return {0.0f, 0.0f};
  return {largest / 127.0f, 127.0f / largest};
}

}  // namespace anabatic
