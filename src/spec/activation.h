// SPDX-License-Identifier: Apache-2.0
// Activations of feed-forward layers: one row each, with value, derivatives and error bound. The
// vector forms are in kernels/cpu/activation_math.h.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "spec/attributes.h"

namespace anabatic::spec {

enum class ActivationKind : std::uint8_t {
  kSwiglu,
  kSwigluClamped,
  kGeglu,
  kGegluTanh,
  kReglu2,
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu2,
};

// Which activation, and its parameters.
struct Activation {
  ActivationKind kind = ActivationKind::kSwiglu;
  // swiglu_clamped: the factor in the sigmoid, and the largest gate and |up|.
  double alpha = 1.702, limit = 7.0;
  bool operator==(const Activation&) const = default;
};

// An activation at one point (gate, up); up is 1 where there is none.
struct ActivationPoint {
  double value = 0, by_gate = 0, by_up = 0;  // a(gate, up) and its derivatives
  double factor = 1;                         // what the function of gate is multiplied by
  double by_gate_terms = 0;                  // |by_gate| with the terms of its sum taken absolute
  double roundings = 0;  // bound of the relative error of a float kernel, in unit roundoffs
};

struct ActivationRow {
  std::string_view name;  // the attribute `activation`
  ActivationKind kind;
  bool is_gated;          // of two operands, gate and up; else of one
  double most_curvature;  // of the function of gate: the largest |second derivative|
  ActivationPoint (*at)(double gate, double up, const Activation& activation);
};

std::span<const ActivationRow> activation_rows();
const ActivationRow& row_of(const Activation& activation);

// From the attributes `activation`, and `alpha` and `limit` where they are given. InvalidArgument
// with all names where there is none of that name.
Activation activation_of(const Attributes& attributes);
// The attributes that activation_of reads.
Attributes to_attributes(const Activation& activation);
// Copies these attributes from one node's to another's, or takes them from a node's.
void copy_activation(const Attributes& from, Attributes& to);
void remove_activation(Attributes& attributes);

inline bool is_gated(const Activation& activation) { return row_of(activation).is_gated; }
// gate and up, or one.
inline int num_operands(const Activation& activation) { return is_gated(activation) ? 2 : 1; }

ActivationPoint evaluate(const Activation& activation, double gate, double up = 1);

}  // namespace anabatic::spec
