// SPDX-License-Identifier: Apache-2.0
// swiglu and its gradient on vectors: one formula for the op and for what runs behind a product.
#pragma once
#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// e^-|x| · 2^32 and 1 / (1 + e^-|x|). The power of two keeps what is as small as e^-109 normal: it
// may multiply something large. Of a NaN anything; what it multiplies is one. 2^f has relative
// error 8e-8 (minimax on [-0.5, 0.5]).
struct Decay {
  Floats scaled, inverse;
};
inline constexpr float kUnscale = 0x1p-32f;

ANABATIC_INLINE Decay decay(Floats x) {
  const Words magnitude = reinterpret_cast<Words>(x) & 0x7FFFFFFFu,
              most = reinterpret_cast<Words>(broadcast(109.0f));
  const Floats a = reinterpret_cast<Floats>(magnitude < most ? magnitude : most);
  // Adding 1.5 · 2^23 rounds to a whole number, which the low bits hold.
  const Floats shifted = madd(a, broadcast(-1.44269504f), broadcast(12582912.0f));
  // log2(e) in two parts: one float alone is off by 2e-8 of x.
  const Floats f = madd(a, broadcast(-1.925963e-8f),
                        madd(a, broadcast(-1.44269504f), 12582912.0f - shifted)),
               f2 = f * f;
  // Pairs of terms side by side: a chain of five would wait for each.
  const Floats high =
      madd(broadcast(0x1p32f * 1.327647196e-03f), f, broadcast(0x1p32f * 9.675541503e-03f));
  const Floats middle =
      madd(broadcast(0x1p32f * 5.550713275e-02f), f, broadcast(0x1p32f * 2.402211972e-01f));
  const Floats low =
      madd(broadcast(0x1p32f * 6.931469671e-01f), f, broadcast(0x1p32f * 1.000000072e+00f));
  const Floats p = madd(madd(high, f2, middle), f2, low);
  const Words bits = reinterpret_cast<Words>(p) + (reinterpret_cast<Words>(shifted) << 23);
  const Floats scaled = reinterpret_cast<Floats>(bits);
  return {scaled, 1.0f / madd(scaled, broadcast(kUnscale), broadcast(1.0f))};
}

// y · sigmoid(x), where d is decay(x).
ANABATIC_INLINE Floats times_sigmoid(Floats x, const Decay& d, Floats y) {
  return (reinterpret_cast<Ints>(x) < 0 ? y * d.scaled * kUnscale : y) * d.inverse;
}

// x · sigmoid(x) · up.
ANABATIC_INLINE Floats swiglu_of(Floats gate, Floats up) {
  return times_sigmoid(gate, decay(gate), gate * up);
}

struct SwigluGradient {
  Floats gate, up;
};
// d is decay(gate).
ANABATIC_INLINE SwigluGradient swiglu_gradient_of(Floats gate, Floats up, Floats dy,
                                                  const Decay& d) {
  const Floats s = times_sigmoid(gate, d, broadcast(1.0f));
  const Floats slope = madd(gate, 1.0f - s, broadcast(1.0f));
  return {times_sigmoid(gate, d, dy * up * slope), times_sigmoid(gate, d, dy * gate)};
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
