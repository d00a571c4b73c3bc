// SPDX-License-Identifier: Apache-2.0
// The dtypes and sizes that an op or a kernel is checked with.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/check/values.h"
#include "plugin/plugin_op.h"

namespace anabatic::plugin::check {

struct Case {
  DType dtype = DType::kFloat32;  // of all floats that take it
  std::map<std::string, std::int64_t> sizes{};
};

// The size of a dimension, which is a name or a number.
std::int64_t size_of(const std::string& dim, const Case& one);

// For every dtype that a float operand takes: all dimensions of one size, each one of another size
// than the rest, and mixed sizes. They are 0, 1, odd, a multiple of a vector, more than a vector,
// and large.
std::vector<Case> cases_of(std::span<const OperandSpec> inputs);
// "f32, R=7 F=33".
std::string to_string(const Case& one, std::span<const OperandSpec> inputs);

// The widest dtype that all floats take, which results are compared with: f64 or f32.
std::optional<DType> reference_dtype(std::span<const OperandSpec> inputs);

std::vector<TensorType> input_types(std::span<const OperandSpec> inputs, const Case& one);
// Random floats, those of odd seeds above 0, where logarithms have a value. Indices are below their
// limit, or 0 where the table has none. None where there is no such index.
std::optional<Operands> random_inputs(std::span<const OperandSpec> inputs, const Case& one,
                                      std::uint64_t seed);

}  // namespace anabatic::plugin::check
