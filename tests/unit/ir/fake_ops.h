// SPDX-License-Identifier: Apache-2.0
// A small op table for tests of the graph, so that they stand without the real one.
#pragma once
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::ir {

//   add(a, b) -> like a                    equal types
//   make() -> TYPE                         attribute type: text
//   overwrite(x, y?) -> like x             must alias x
//   grouped(x, offsets i32[m]) -> like x
//   split(x) -> like x, like x
//   sum(x0, x1, ...) -> f32[]
const OpSchema* find_fake_op(std::string_view name);

}  // namespace anabatic::ir
