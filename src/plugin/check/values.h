// SPDX-License-Identifier: Apache-2.0
// Operands of a call with their values, which checks read and write as double.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor_type.h"

namespace anabatic::plugin::check {

struct Operand {
  TensorType type;
  std::vector<std::byte> bytes{};  // of an output only after a call
  bool is_given = true;            // false: its data are null
  std::string name{};              // as the op's table has it: "x"; "gradient of x"
};
using Operands = std::vector<Operand>;

bool is_float(DType dtype);
// The largest relative error of one rounding to nearest; 0 of integers.
double roundoff(DType dtype);
// That of the narrowest float type of given operands.
double roundoff(const Operands& operands);

double value_at(const Operand& operand, std::int64_t element);
void set_value(Operand& operand, std::int64_t element, double value);
// The largest magnitude.
double largest(const Operand& operand);

// Zeros, and values with magnitudes in [0.25, 1.25) of both signs: none is where relu, abs and
// their like have no derivative.
Operand zeros(TensorType type, std::string name);
Operand random_floats(TensorType type, std::string name, std::uint64_t seed, std::uint64_t stream);
void make_positive(Operand& operand);
// The same values, rounded to that dtype.
Operand converted(const Operand& operand, DType dtype);
// Floats moved by up to this share of themselves, each by another one.
Operand moved(const Operand& operand, double share, std::uint64_t stream);

}  // namespace anabatic::plugin::check
