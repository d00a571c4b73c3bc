// SPDX-License-Identifier: Apache-2.0
#include "model/float_conversion.h"

#include <cstring>

#include "base/error.h"
#include "io/block_loops.h"

namespace anabatic::model {
namespace {

// Elements need not be aligned in a file.
template <class T>
T load(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* bytes, std::size_t i, T value) {
  std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat16;
}

void to_floats(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  ANABATIC_CHECK(is_weight_dtype(dtype) &&
                     bytes.size() == values.size() * static_cast<std::size_t>(size_bytes(dtype)),
                 "[weights] {} bytes of {} for {} values", bytes.size(), to_string(dtype),
                 values.size());
  const std::byte* from = bytes.data();
  const std::size_t count = values.size();
  if (count == 0) return;
  if (dtype == DType::kFloat32) std::memcpy(values.data(), from, bytes.size());
  if (dtype == DType::kFloat64)
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(load<double>(from, i));
  const auto elements = static_cast<std::int64_t>(count);
  if (dtype == DType::kBFloat16) io::block_loops().from_bf16(from, elements, values.data());
  if (dtype == DType::kFloat16) io::block_loops().from_f16(from, elements, values.data());
}

void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes) {
  ANABATIC_CHECK(is_weight_dtype(dtype) &&
                     bytes.size() == values.size() * static_cast<std::size_t>(size_bytes(dtype)),
                 "[weights] {} bytes of {} for {} values", bytes.size(), to_string(dtype),
                 values.size());
  std::byte* to = bytes.data();
  const std::size_t count = values.size();
  if (count == 0) return;
  if (dtype == DType::kFloat32) std::memcpy(to, values.data(), bytes.size());
  if (dtype == DType::kFloat64)
    for (std::size_t i = 0; i < count; ++i) store(to, i, static_cast<double>(values[i]));
  const auto elements = static_cast<std::int64_t>(count);
  if (dtype == DType::kBFloat16) io::block_loops().to_bf16(values.data(), elements, to);
  if (dtype == DType::kFloat16) io::block_loops().to_f16(values.data(), elements, to);
}

}  // namespace anabatic::model
