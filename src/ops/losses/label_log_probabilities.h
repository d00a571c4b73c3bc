// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of given labels, row by row: what an evaluation scores by. Passes create the
// form that reads the head's operands; model builders use linear and the form over its logits.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLabelLogProbabilities, kHeadLogProbabilities;

}  // namespace anabatic::ops
