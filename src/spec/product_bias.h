// SPDX-License-Identifier: Apache-2.0
// Biases of products with experts. With the attribute `bias` a forward product has f32[E,N] for
// each of its weights [E,N,K], after all other inputs. Rows of expert e get row e of it in
// addition, before they are rounded.
#pragma once
#include <algorithm>
#include <span>

#include "spec/product.h"

namespace anabatic::spec {

inline std::size_t num_biases(const Attributes& attributes) {
  if (!get_bool_or(attributes, "bias", false)) return 0;
  if (!attributes.contains("activation")) return 1;
  return static_cast<std::size_t>(num_operands(activation_of(attributes)));
}

// The inputs of a forward product of experts, of any kind, but for its biases; and these.
template <class Inputs>
auto without_biases(const Inputs& inputs, const Attributes& attributes) {
  const std::span all(inputs);
  return all.first(all.size() - std::min(all.size(), num_biases(attributes)));
}
template <class Inputs>
auto biases_of(const Inputs& inputs, const Attributes& attributes) {
  return std::span(inputs).last(std::min(std::size(inputs), num_biases(attributes)));
}

}  // namespace anabatic::spec
