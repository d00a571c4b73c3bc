// SPDX-License-Identifier: Apache-2.0
#include "ops/product_bias.h"

#include <fmt/core.h>

#include "spec/product_bias.h"

namespace anabatic::ops {
namespace {

constexpr std::size_t kFirstWeight = 1;

}  // namespace

ir::Types checked_without_biases(std::string_view op, ir::Types inputs,
                                 const spec::Attributes& attributes) {
  const std::size_t count = spec::num_biases(attributes);
  if (count == 0) return inputs;
  static const spec::Attributes kNone;
  const Check check(op, inputs, kNone);
  const std::size_t least = kFirstWeight + count + 1 + count;  // x, weights, offsets, biases
  if (inputs.size() < least)
    check.fail(
        fmt::format("expected at least {} inputs with 'bias', got {}", least, inputs.size()));
  const Operand x = check.floating(0, "x", 2);
  for (std::size_t i = 0; i < count; ++i) {
    const Operand weight = check.weight(static_cast<int>(kFirstWeight + i), "weight", 3, x),
                  bias = check.wide(static_cast<int>(inputs.size() - count + i), "bias", 2);
    check.row_major(bias);
    check.same_dim(bias, 0, weight, 0);
    check.same_dim(bias, 1, weight, 1);
  }
  return inputs.first(inputs.size() - count);
}

}  // namespace anabatic::ops
