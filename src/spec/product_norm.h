// SPDX-License-Identifier: Apache-2.0
// The norm that a product applies to its operand x itself. With the attribute `norm` a dense
// forward product, or weight gradient, has after all other inputs
//   statistics f32[T,S]  what `norm_statistics` computes of the rows of x [T,K]
//   weight f32[K]        of the norm
//   bias f32[K]          of a layer norm
// and reads x as the norm of it, with the bits that `rms_norm` or `layer_norm` would have stored.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "spec/attributes.h"

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

// Statistics of a row, S: 1 / root mean square; of a layer norm 1 / standard deviation and mean.
// Both with the norm's epsilon, in f32.
constexpr std::int64_t num_statistics(Norm norm) { return norm == Norm::kLayer ? 2 : 1; }

// Inputs that the norm adds to a product: statistics, weight, bias?.
constexpr std::size_t num_norm_inputs(Norm norm) {
  return norm == Norm::kNone ? 0 : norm == Norm::kRms ? 2 : 3;
}

// The inputs of a product but for those of its norm; and these.
template <class Inputs>
auto without_norm(const Inputs& inputs, const Attributes& attributes) {
  const std::span all(inputs);
  return all.first(all.size() - std::min(all.size(), num_norm_inputs(norm_of(attributes))));
}
template <class Inputs>
auto norm_inputs(const Inputs& inputs, const Attributes& attributes) {
  return std::span(inputs).last(std::min(std::size(inputs), num_norm_inputs(norm_of(attributes))));
}

}  // namespace anabatic::spec
