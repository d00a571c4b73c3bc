// SPDX-License-Identifier: Apache-2.0
// Dropout: x / (1 - rate) where an element is kept, else 0. Its own gradient.
#pragma once
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::ops {

class Check;

// Fails unless the attribute is a rate that drops something and not everything.
void check_dropout_rate(const Check& check, std::string_view name);

extern const ir::OpSchema kDropout;

}  // namespace anabatic::ops
