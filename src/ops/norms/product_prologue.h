// SPDX-License-Identifier: Apache-2.0
// Checks of the norm and the dropout that dense products may apply to their operand x.
#pragma once
#include "ops/check.h"
#include "spec/product_prologue.h"

namespace anabatic::ops {

// The inputs of a product but for those of its prologue (spec/product_prologue.h), each of which
// fits x. A product without one has at most `most_inputs`.
ir::Types checked_without_prologue(std::string_view op, ir::Types inputs,
                                   const spec::Attributes& attributes, std::size_t most_inputs);

// An internal error where the product has one: passes add them after all gradients.
void require_no_prologue(const ir::Node& node);

}  // namespace anabatic::ops
