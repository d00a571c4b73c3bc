// SPDX-License-Identifier: Apache-2.0
// A parameter's gradient: the value of the state plus the contributions of this micro-batch. Or the
// sum of a leaf of the step plus those of leaves before it (spec/step.h), one after the other:
//
//   sum_leaves(leaf, level 0, level 1, ...) {leaves} -> (leaf + level 0) + level 1 ...
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAccumulate;
extern const ir::OpSchema kSumLeaves;

}  // namespace anabatic::ops
