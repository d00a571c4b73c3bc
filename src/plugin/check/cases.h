// SPDX-License-Identifier: Apache-2.0
// The dtypes and sizes that an op is checked with.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plugin/check/values.h"
#include "plugin/plugin_op.h"

namespace anabatic::plugin::check {

struct Case {
  DType dtype = DType::kFloat32;  // of all floats that take it
  std::map<std::string, std::int64_t> sizes{};
};

// For every dtype that a float operand takes: all dimensions of one size, each one of another size
// than the rest, and mixed sizes. They are 0, 1, odd, a multiple of a vector, more than a vector,
// and large.
std::vector<Case> cases_of(const PluginOp& op);
// "f32, R=7 F=33".
std::string to_string(const Case& one, const PluginOp& op);

// The widest dtype that all floats take, which results are compared with: f64 or f32.
std::optional<DType> reference_dtype(const PluginOp& op);

std::vector<TensorType> input_types(const PluginOp& op, const Case& one);
// Random floats, those of odd seeds above 0, where logarithms have a value. Indices are below their
// limit, or 0 where the table has none. None where there is no such index.
std::optional<Operands> random_inputs(const PluginOp& op, const Case& one, std::uint64_t seed);

}  // namespace anabatic::plugin::check
