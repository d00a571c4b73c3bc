// SPDX-License-Identifier: Apache-2.0
// Checks of the norm that dense products may apply to their operand x.
#pragma once
#include "ops/check.h"
#include "spec/product_norm.h"

namespace anabatic::ops {

// The inputs of a product but for those of its norm (spec/product_norm.h), each of which fits x. A
// product without one has at most `most_inputs`.
ir::Types checked_without_norm(std::string_view op, ir::Types inputs,
                               const spec::Attributes& attributes, std::size_t most_inputs);

// An internal error where the product has a norm: fuse_norm_linear comes after all gradients.
void require_no_norm(const ir::Node& node);

}  // namespace anabatic::ops
