// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace anabatic::plugin::check {
namespace {

template <class T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

template <class T>
void store(std::byte* data, T value) {
  std::memcpy(data, &value, sizeof(value));
}

}  // namespace

bool is_float(DType dtype) { return dtype != DType::kInt32; }

double roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1p-53;
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kBFloat16:
      return 0x1p-9;
    default:
      return 0;
  }
}

double roundoff(const Operands& operands) {
  double result = 0;
  for (const Operand& operand : operands)
    if (operand.is_given) result = std::max(result, roundoff(operand.type.dtype));
  return result;
}

double value_at(const Operand& operand, std::int64_t element) {
  const std::byte* at = operand.bytes.data() + element * size_bytes(operand.type.dtype);
  switch (operand.type.dtype) {
    case DType::kFloat64:
      return load<double>(at);
    case DType::kFloat32:
      return double{load<float>(at)};
    case DType::kBFloat16:
      return double{to_float(load<BFloat16>(at))};
    default:
      return static_cast<double>(load<std::int32_t>(at));
  }
}

void set_value(Operand& operand, std::int64_t element, double value) {
  std::byte* at = operand.bytes.data() + element * size_bytes(operand.type.dtype);
  switch (operand.type.dtype) {
    case DType::kFloat64:
      return store(at, value);
    case DType::kFloat32:
      return store(at, static_cast<float>(value));
    case DType::kBFloat16:
      return store(at, to_bfloat16(static_cast<float>(value)));
    default:
      return store(at, static_cast<std::int32_t>(value));
  }
}

double largest(const Operand& operand) {
  double result = 0;
  const std::int64_t count = operand.type.num_elements();
  for (std::int64_t i = 0; i < count; ++i)
    result = std::max(result, std::abs(value_at(operand, i)));
  return result;
}

Operand zeros(TensorType type, std::string name) {
  Operand operand{.type = std::move(type), .name = std::move(name)};
  operand.bytes.resize(static_cast<std::size_t>(operand.type.num_bytes()));
  return operand;
}

Operand random_floats(TensorType type, std::string name, std::uint64_t seed, std::uint64_t stream) {
  Operand operand = zeros(std::move(type), std::move(name));
  const std::int64_t count = operand.type.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const double uniform = 2 * random_uniform(seed, stream, static_cast<std::uint64_t>(i)) - 1;
    set_value(operand, i, uniform + std::copysign(0.25, uniform));
  }
  return operand;
}

void make_positive(Operand& operand) {
  const std::int64_t count = operand.type.num_elements();
  for (std::int64_t i = 0; i < count; ++i) set_value(operand, i, std::abs(value_at(operand, i)));
}

Operand converted(const Operand& operand, DType dtype) {
  if (!is_float(operand.type.dtype)) return operand;
  TensorType type = operand.type;
  type.dtype = dtype;
  Operand result = zeros(std::move(type), operand.name);
  result.is_given = operand.is_given;
  const std::int64_t count = operand.bytes.empty() ? 0 : operand.type.num_elements();
  for (std::int64_t i = 0; i < count; ++i) set_value(result, i, value_at(operand, i));
  return result;
}

Operand moved(const Operand& operand, double share, std::uint64_t stream) {
  Operand result = operand;
  if (!is_float(operand.type.dtype) || operand.bytes.empty()) return result;
  const std::int64_t count = operand.type.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const double uniform = 2 * random_uniform(1, stream, static_cast<std::uint64_t>(i)) - 1;
    set_value(result, i, value_at(operand, i) * (1 + share * uniform));
  }
  return result;
}

}  // namespace anabatic::plugin::check
