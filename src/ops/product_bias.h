// SPDX-License-Identifier: Apache-2.0
// Checks of the biases that products of experts may have as their last inputs.
#pragma once
#include "ops/check.h"

namespace anabatic::ops {

// The inputs of a forward product but for its biases, each of which fits its weight.
ir::Types checked_without_biases(std::string_view op, ir::Types inputs,
                                 const spec::Attributes& attributes);

}  // namespace anabatic::ops
