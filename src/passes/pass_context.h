// SPDX-License-Identifier: Apache-2.0
// What every pass may read besides the graph. Passes write neither of these.
#pragma once
#include "ir/op_schema.h"
#include "spec/training.h"

namespace anabatic::passes {

struct PassOptions {
  spec::Precision precision = spec::Precision::kFp32;
  spec::OptimizerOptions optimizer{};
  bool pack_transposed = true;  // keep a second packing of weights, for input-gradients
  bool with_update = true;      // false: gradients only, no optimizer
};

struct PassContext {
  PassOptions options{};
  // The op table that builders and parsers of the pass use; never null when a pass runs.
  const ir::OpSchema* (*find_op)(std::string_view name) = nullptr;
};

}  // namespace anabatic::passes
