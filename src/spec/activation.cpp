// SPDX-License-Identifier: Apache-2.0
#include "spec/activation.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace anabatic::spec {
namespace {

// An exp or a reciprocal of a vector library is off by at most 4 units in the last place.
constexpr double kFunction = 8;

// f(x), f'(x), the sum of the absolute terms of f'(x), and roundings as in ActivationPoint.
struct Function {
  double value, slope, slope_terms, roundings;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// x · sigmoid(alpha · x). The argument of exp is rounded, so its relative error grows with it.
Function silu(double x, double alpha = 1) {
  const double s = sigmoid(alpha * x);
  return {.value = x * s,
          .slope = s * (1 + alpha * x * (1 - s)),
          .slope_terms = s * (1 + std::abs(alpha * x)),
          .roundings = kFunction + std::abs(alpha * x)};
}

// x · Φ(x), Φ the distribution function of the normal distribution (Hendrycks and Gimpel, 2016).
Function gelu(double x) {
  constexpr double kInverseSqrt2 = 0.70710678118654752, kDensity = 0.39894228040143268;
  const double below = std::erfc(-x * kInverseSqrt2) / 2, density = kDensity * std::exp(-x * x / 2);
  return {.value = x * below,
          .slope = below + x * density,
          .slope_terms = below + std::abs(x) * density,
          .roundings = 3 * kFunction + 2 * x * x};
}

// x · sigmoid(2 √(2/π) (x + 0.044715 x³)), which is 0.5 x (1 + tanh(…)).
Function gelu_tanh(double x) {
  constexpr double kScale = 1.5957691216057308, kCube = 0.044715;
  const double argument = kScale * x * (1 + kCube * x * x), s = sigmoid(argument),
               inner = kScale * (1 + 3 * kCube * x * x), tail = sigmoid(-argument);
  return {.value = x * s,
          .slope = s + x * s * tail * inner,
          .slope_terms = s + std::abs(x) * s * tail * inner,
          .roundings = 2 * kFunction + 4 * std::abs(argument)};
}

// max(x, 0)² (So et al., 2021).
Function relu2(double x) {
  const double positive = x < 0 ? 0 : x;
  return {.value = positive * positive,
          .slope = 2 * positive,
          .slope_terms = 2 * positive,
          .roundings = 2};
}

// f(gate) · up (Shazeer, 2020).
template <Function (*F)(double)>
ActivationPoint gated(double gate, double up, const Activation&) {
  const Function f = F(gate);
  return {.value = f.value * up,
          .by_gate = f.slope * up,
          .by_up = f.value,
          .factor = up,
          .by_gate_terms = f.slope_terms * std::abs(up),
          .roundings = f.roundings};
}
Function plain_silu(double x) { return silu(x); }

// As gpt-oss has it: silu with a factor, of a gate up to `limit`, times up + 1 within its limits.
ActivationPoint swiglu_clamped(double gate, double up, const Activation& activation) {
  const double limit = activation.limit, factor = (up > limit    ? limit
                                                   : up < -limit ? -limit
                                                                 : up) +
                                                  1;
  const Function f = silu(gate > limit ? limit : gate, activation.alpha);
  const bool moves = !(gate > limit);
  return {.value = f.value * factor,
          .by_gate = moves ? f.slope * factor : 0,
          .by_up = std::abs(up) > limit ? 0 : f.value,
          .factor = factor,
          .by_gate_terms = moves ? f.slope_terms * std::abs(factor) : 0,
          .roundings = f.roundings + 4};
}

constexpr double kSiluCurvature = 0.5, kGeluCurvature = 0.8;

constexpr std::array<ActivationRow, 9> kActivationRows{{
    {"swiglu", ActivationKind::kSwiglu, true, kSiluCurvature, gated<plain_silu>},
    {"swiglu_clamped", ActivationKind::kSwigluClamped, true, 2 * kSiluCurvature, swiglu_clamped},
    {"geglu", ActivationKind::kGeglu, true, kGeluCurvature, gated<gelu>},
    {"geglu_tanh", ActivationKind::kGegluTanh, true, kGeluCurvature, gated<gelu_tanh>},
    {"reglu2", ActivationKind::kReglu2, true, 2, gated<relu2>},
    {"silu", ActivationKind::kSilu, false, kSiluCurvature, gated<plain_silu>},
    {"gelu", ActivationKind::kGelu, false, kGeluCurvature, gated<gelu>},
    {"gelu_tanh", ActivationKind::kGeluTanh, false, kGeluCurvature, gated<gelu_tanh>},
    {"relu2", ActivationKind::kRelu2, false, 2, gated<relu2>},
}};

constexpr std::string_view kActivationKeys[] = {"activation", "alpha", "limit"};

}  // namespace

std::span<const ActivationRow> activation_rows() { return kActivationRows; }

const ActivationRow& row_of(const Activation& activation) {
  return kActivationRows.at(static_cast<std::size_t>(activation.kind));
}

Activation activation_of(const Attributes& attributes) {
  const std::string& name = get_string(attributes, "activation");
  const auto found = std::find_if(kActivationRows.begin(), kActivationRows.end(),
                                  [&](const ActivationRow& row) { return row.name == name; });
  if (found == kActivationRows.end()) {
    std::vector<std::string_view> names;
    for (const ActivationRow& row : kActivationRows) names.push_back(row.name);
    throw InvalidArgument(
        fmt::format("[activation] expected one of {}, got '{}'", fmt::join(names, ", "), name));
  }
  Activation activation{.kind = found->kind};
  activation.alpha = get_double_or(attributes, "alpha", activation.alpha);
  activation.limit = get_double_or(attributes, "limit", activation.limit);
  return activation;
}

Attributes to_attributes(const Activation& activation) {
  Attributes attributes{{"activation", std::string(row_of(activation).name)}};
  if (activation.kind == ActivationKind::kSwigluClamped) {
    attributes["alpha"] = activation.alpha;
    attributes["limit"] = activation.limit;
  }
  return attributes;
}

void copy_activation(const Attributes& from, Attributes& to) {
  for (const std::string_view key : kActivationKeys)
    if (const auto found = from.find(key); found != from.end()) to[found->first] = found->second;
}

void remove_activation(Attributes& attributes) {
  for (const std::string_view key : kActivationKeys)
    if (const auto found = attributes.find(key); found != attributes.end()) attributes.erase(found);
}

ActivationPoint evaluate(const Activation& activation, double gate, double up) {
  return row_of(activation).at(gate, up, activation);
}

}  // namespace anabatic::spec
