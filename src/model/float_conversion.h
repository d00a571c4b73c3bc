// SPDX-License-Identifier: Apache-2.0
// Converts values of weight files (f64, f32, bf16, f16) to and from f32.
#pragma once
#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace anabatic::model {

bool is_weight_dtype(DType dtype);

// `bytes` holds values.size() elements of `dtype`, at any alignment.
void to_floats(DType dtype, std::span<const std::byte> bytes, std::span<float> values);
void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes);

}  // namespace anabatic::model
