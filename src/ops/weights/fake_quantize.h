// SPDX-License-Identifier: Apache-2.0
// Rounds weights to the values that a file in a grid holds of them (tensor/weight_grid.h), and lays
// them out as products read them: quantization-aware training.
#pragma once
#include "ir/op_schema.h"
#include "tensor/weight_grid.h"

namespace anabatic::ops {

// The attributes with which `fake_quantize` has a result of this type. With a delay it reads the
// step, and weights stay as they are in steps below it.
spec::Attributes fake_quantize_attributes(const TensorType& result, const WeightGrid& grid,
                                          std::int64_t delay);

extern const ir::OpSchema kFakeQuantize;

}  // namespace anabatic::ops
