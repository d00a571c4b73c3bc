// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <array>

#include "base/error.h"

namespace anabatic {
namespace {

struct Row {
  DType dtype;
  std::int64_t bytes;
  std::string_view text;
};

constexpr std::array<Row, 10> kRows{{{DType::kFloat64, 8, "f64"},
                                     {DType::kFloat32, 4, "f32"},
                                     {DType::kBFloat16, 2, "bf16"},
                                     {DType::kFloat16, 2, "f16"},
                                     {DType::kInt8, 1, "i8"},
                                     {DType::kUInt8, 1, "u8"},
                                     {DType::kUInt16, 2, "u16"},
                                     {DType::kInt32, 4, "i32"},
                                     {DType::kInt64, 8, "i64"},
                                     {DType::kBool, 1, "bool"}}};

const Row& row(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  ANABATIC_CHECK(i < kRows.size(), "[dtype] unknown code {}", i);
  return kRows[i];
}

}  // namespace

std::int64_t size_bytes(DType dtype) { return row(dtype).bytes; }

std::string_view to_string(DType dtype) { return row(dtype).text; }

std::optional<DType> dtype_from_string(std::string_view text) {
  for (const Row& r : kRows)
    if (r.text == text) return r.dtype;
  return std::nullopt;
}

}  // namespace anabatic
