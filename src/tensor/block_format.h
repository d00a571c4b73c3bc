// SPDX-License-Identifier: Apache-2.0
// How a quantised tensor is stored: elements of 8 bits, and a scale for each block of them. A value
// is the element, by its map, times the scale of its block.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace anabatic {

// What an element stands for, before its scale.
enum class ElementMap : std::uint8_t {
  kLinear,          // i8: the integer itself
  kDynamic,         // u8: an entry of the signed map of tensor/dynamic_map.h
  kDynamicUnsigned  // u8: an entry of the unsigned map
};

struct BlockFormat {
  ElementMap map = ElementMap::kLinear;
  DType scale = DType::kBFloat16;
  std::int64_t rows = 1, columns = 1;  // of a block of a matrix; smaller at its edges

  bool operator==(const BlockFormat&) const = default;
};

// A matrix in int8 has a scale for each `columns` columns of a row.
constexpr BlockFormat int8_format(std::int64_t columns, DType scale = DType::kBFloat16) {
  return {.map = ElementMap::kLinear, .scale = scale, .rows = 1, .columns = columns};
}

// The dtype that elements of the map are stored as.
DType element_dtype(ElementMap map);

// "i8_bf16_1x128", "dynamic8_f32_16x16": elements, scales, rows and columns of a block.
std::string to_string(const BlockFormat& format);
// The inverse; nothing for another text, or for a block without rows or columns.
std::optional<BlockFormat> block_format_from_string(std::string_view text);

}  // namespace anabatic
