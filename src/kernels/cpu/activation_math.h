// SPDX-License-Identifier: Apache-2.0
// Activations and their gradients on vectors: one formula for the op and for what runs after a
// product. A function of one operand gives value and slope; Gated and Plain make activations of it.
#pragma once
#include "kernels/cpu/vector_math.h"
#include "spec/activation.h"

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
// y · sigmoid(-x): 1 - sigmoid(x) without cancellation.
ANABATIC_INLINE Floats times_tail(Floats x, const Decay& d, Floats y) {
  return (reinterpret_cast<Ints>(x) < 0 ? y : y * d.scaled * kUnscale) * d.inverse;
}

// The gradients of gate and up; up's is unused where there is one operand.
struct ActivationGradient {
  Floats gate, up;
};
struct GradientAndValue {
  ActivationGradient gradient;
  Floats value;
};

// silu(gate) · up.
struct Swiglu {
  static constexpr bool kIsGated = true;

  ANABATIC_INLINE Floats value(Floats gate, Floats up) const {
    return times_sigmoid(gate, decay(gate), gate * up);
  }
  ANABATIC_INLINE GradientAndValue gradient(Floats gate, Floats up, Floats dy) const {
    const Decay d = decay(gate);
    const Floats s = times_sigmoid(gate, d, broadcast(1.0f));
    const Floats slope = madd(gate, 1.0f - s, broadcast(1.0f));
    return {{times_sigmoid(gate, d, dy * up * slope), times_sigmoid(gate, d, dy * gate)},
            times_sigmoid(gate, d, gate * up)};
  }
};

// silu with a factor, of a clamped gate, times a clamped up + 1.
struct SwigluClamped {
  static constexpr bool kIsGated = true;
  Floats alpha, limit;

  explicit SwigluClamped(const spec::Activation& activation)
      : alpha(broadcast(static_cast<float>(activation.alpha))),
        limit(broadcast(static_cast<float>(activation.limit))) {}

  ANABATIC_INLINE Floats value(Floats gate, Floats up) const {
    const Floats g = clamped(gate), x = alpha * g;
    return times_sigmoid(x, decay(x), g * factor(up));
  }
  ANABATIC_INLINE GradientAndValue gradient(Floats gate, Floats up, Floats dy) const {
    const Floats g = clamped(gate), x = alpha * g, f = factor(up);
    const Decay d = decay(x);
    const Floats slope = madd(x, times_tail(x, d, broadcast(1.0f)), broadcast(1.0f));
    const Floats by_gate = times_sigmoid(x, d, dy * f * slope), by_up = times_sigmoid(x, d, dy * g);
    const Floats zero{};
    return {{gate > limit ? zero : by_gate, up > limit    ? zero
                                            : up < -limit ? zero
                                                          : by_up},
            times_sigmoid(x, d, g * f)};
  }

 private:
  ANABATIC_INLINE Floats clamped(Floats gate) const { return gate > limit ? limit : gate; }
  ANABATIC_INLINE Floats factor(Floats up) const {
    const Floats low = up < -limit ? -limit : up;
    return (low > limit ? limit : low) + 1.0f;
  }
};

struct ValueAndSlope {
  Floats value, slope;
};

struct Silu {
  ANABATIC_INLINE ValueAndSlope operator()(Floats x) const {
    const Decay d = decay(x);
    const Floats slope = madd(x, times_tail(x, d, broadcast(1.0f)), broadcast(1.0f));
    return {times_sigmoid(x, d, x), times_sigmoid(x, d, slope)};
  }
};

// x · Φ(x). erfc(z) = t · exp(-z² + P(t)) with t = 1 / (1 + z / 2) and relative error 1.2e-7
// (Press et al., Numerical Recipes, "erfcc").
struct Gelu {
  ANABATIC_INLINE ValueAndSlope operator()(Floats x) const {
    const Floats magnitude = reinterpret_cast<Floats>(reinterpret_cast<Words>(x) & 0x7FFFFFFFu);
    const Floats z = magnitude * 0.70710678f, t = 1.0f / madd(z, broadcast(0.5f), broadcast(1.0f));
    constexpr float kTerms[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f,
                                0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                                1.00002368f, -1.26551223f};
    Floats p = broadcast(kTerms[0]);
    for (int i = 1; i < 10; ++i) p = madd(p, t, broadcast(kTerms[i]));
    // Both exponents are at most 0, but for the roundings of p at 0. Scaled as Decay::scaled.
    const Floats tail = 0.5f * t * decay(madd(z, z, -p)).scaled,
                 x_density = x * (0.39894228f * decay(z * z).scaled);
    const Floats above = madd(tail, broadcast(-kUnscale), broadcast(1.0f));
    const auto is_negative = reinterpret_cast<Ints>(x) < 0;
    return {
        is_negative ? x * tail * kUnscale : x * above,
        is_negative ? (tail + x_density) * kUnscale : madd(x_density, broadcast(kUnscale), above)};
  }
};

// x · sigmoid(v), v = 2 √(2/π) (x + 0.044715 x³), which is 0.5 x (1 + tanh(v / 2)).
struct GeluTanh {
  ANABATIC_INLINE ValueAndSlope operator()(Floats x) const {
    // Far out the sigmoid is 0 or 1; the square must not overflow.
    const Floats squared = x * x, far = broadcast(1e4f), x2 = squared > far ? far : squared;
    const Floats v = 1.5957691f * x * madd(x2, broadcast(0.044715f), broadcast(1.0f));
    const Floats inner = madd(x2, broadcast(1.5957691f * 0.134145f), broadcast(1.5957691f));
    const Decay d = decay(v);
    const Floats slope = madd(times_tail(v, d, x), inner, broadcast(1.0f));
    return {times_sigmoid(v, d, x), times_sigmoid(v, d, slope)};
  }
};

// max(x, 0)².
struct Relu2 {
  ANABATIC_INLINE ValueAndSlope operator()(Floats x) const {
    const Floats positive = x < 0.0f ? Floats{} : x;
    return {positive * positive, positive + positive};
  }
};

// f(gate) · up.
template <class Function>
struct Gated {
  static constexpr bool kIsGated = true;
  ANABATIC_INLINE Floats value(Floats gate, Floats up) const { return Function{}(gate).value * up; }
  ANABATIC_INLINE GradientAndValue gradient(Floats gate, Floats up, Floats dy) const {
    const ValueAndSlope f = Function{}(gate);
    return {{dy * up * f.slope, dy * f.value}, f.value * up};
  }
};

// f(x), without a second operand.
template <class Function>
struct Plain {
  static constexpr bool kIsGated = false;
  ANABATIC_INLINE Floats value(Floats x, Floats) const { return Function{}(x).value; }
  ANABATIC_INLINE GradientAndValue gradient(Floats x, Floats, Floats dy) const {
    const ValueAndSlope f = Function{}(x);
    return {{dy * f.slope, Floats{}}, f.value};
  }
};

// body(the vector form) of an activation.
template <class Body>
void with_activation(const spec::Activation& activation, Body&& body) {
  switch (activation.kind) {
    case spec::ActivationKind::kSwiglu:
      return body(Swiglu{});
    case spec::ActivationKind::kSwigluClamped:
      return body(SwigluClamped{activation});
    case spec::ActivationKind::kGeglu:
      return body(Gated<Gelu>{});
    case spec::ActivationKind::kGegluTanh:
      return body(Gated<GeluTanh>{});
    case spec::ActivationKind::kReglu2:
      return body(Gated<Relu2>{});
    case spec::ActivationKind::kSilu:
      return body(Plain<Silu>{});
    case spec::ActivationKind::kGelu:
      return body(Plain<Gelu>{});
    case spec::ActivationKind::kGeluTanh:
      return body(Plain<GeluTanh>{});
    case spec::ActivationKind::kRelu2:
      return body(Plain<Relu2>{});
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
