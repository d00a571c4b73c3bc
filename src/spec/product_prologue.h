// SPDX-License-Identifier: Apache-2.0
// What a product does to its operand x as it reads it: a norm, then dropout, or one of them. A
// dense forward product, or weight gradient, has after all other inputs
//   statistics f32[T,S]  with the attribute `norm`: what `norm_statistics` computes of the rows of
//                        x [T,K]
//   weight f32[K]        of the norm
//   bias f32[K]          of a layer norm
//   draws i32[3]         with `dropout_rate` and `dropout_site` (spec/dropout.h). Not in an
//                        activation's product
// and reads x with the bits that `rms_norm` or `layer_norm`, and then `dropout`, would have stored.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "spec/attributes.h"
#include "spec/dropout.h"

namespace anabatic::spec {

inline constexpr std::string_view kNorm = "norm", kRmsNorm = "rms", kLayerNorm = "layer";

enum class Norm : std::uint8_t { kNone, kRms, kLayer };

// kNone without the attribute, or for a word that is none of the two.
inline Norm norm_of(const Attributes& attributes) {
  const auto found = attributes.find(kNorm);
  if (found == attributes.end()) return Norm::kNone;
  const auto* word = std::get_if<std::string>(&found->second);
  if (word == nullptr) return Norm::kNone;
  return *word == kRmsNorm ? Norm::kRms : *word == kLayerNorm ? Norm::kLayer : Norm::kNone;
}

// Whether a product drops elements of x. It has both attributes then.
inline bool drops_x(const Attributes& product) {
  return product.contains(kDropoutRate) || product.contains(kDropoutSite);
}

// Statistics of a row, S: 1 / root mean square; of a layer norm 1 / standard deviation and mean.
// Both with the norm's epsilon, in f32.
constexpr std::int64_t num_statistics(Norm norm) { return norm == Norm::kLayer ? 2 : 1; }

// Inputs that the norm adds to a product: statistics, weight, bias?.
constexpr std::size_t num_norm_inputs(Norm norm) {
  return norm == Norm::kNone ? 0 : norm == Norm::kRms ? 2 : 3;
}
// Those of the norm and of dropout.
inline std::size_t num_prologue_inputs(const Attributes& product) {
  return num_norm_inputs(norm_of(product)) + (drops_x(product) ? 1 : 0);
}

// The inputs of a product but for those of its prologue; those of its prologue; of its norm alone.
template <class Inputs>
auto without_prologue(const Inputs& inputs, const Attributes& product) {
  const std::span all(inputs);
  return all.first(all.size() - std::min(all.size(), num_prologue_inputs(product)));
}
template <class Inputs>
auto prologue_inputs(const Inputs& inputs, const Attributes& product) {
  return std::span(inputs).last(std::min(std::size(inputs), num_prologue_inputs(product)));
}
template <class Inputs>
auto norm_inputs(const Inputs& inputs, const Attributes& product) {
  const auto prologue = prologue_inputs(inputs, product);
  return prologue.first(std::min(prologue.size(), num_norm_inputs(norm_of(product))));
}

}  // namespace anabatic::spec
