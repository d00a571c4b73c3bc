// SPDX-License-Identifier: Apache-2.0
// How a quantised tensor is stored: elements of 8 or 4 bits, and a scale for each block of them. A
// value is the element, by its map, times the scale of its block.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace anabatic {

// What an element stands for, before its scale.
enum class ElementMap : std::uint8_t {
  kLinear,           // i8: the integer itself
  kDynamic,          // u8: an entry of the signed map of tensor/dynamic_map.h
  kDynamicUnsigned,  // u8: an entry of the unsigned map
  kFloat4            // E2M1, two in a u8, the first in its lower half: tensor/float4.h
};

struct BlockFormat {
  ElementMap map = ElementMap::kLinear;
  DType scale = DType::kBFloat16;      // u8: E8M0, 2^(scale - 127)
  std::int64_t rows = 1, columns = 1;  // of a block of a matrix; smaller at its edges

  bool operator==(const BlockFormat&) const = default;
};

inline constexpr std::int64_t kInt8Tile = 128;

// A matrix in int8 has a scale for each `columns` columns of a row.
constexpr BlockFormat int8_format(std::int64_t columns, DType scale = DType::kBFloat16) {
  return {.map = ElementMap::kLinear, .scale = scale, .rows = 1, .columns = columns};
}

// Weights of int8 products: a scale for each tile of 128 x 128, whichever way a product reads it.
constexpr BlockFormat int8_tile_format() {
  return {.map = ElementMap::kLinear,
          .scale = DType::kBFloat16,
          .rows = kInt8Tile,
          .columns = kInt8Tile};
}

// MXFP4: 32 elements of 4 bits in a row share a scale, and rows are whole blocks.
constexpr BlockFormat mxfp4_format() {
  return {.map = ElementMap::kFloat4, .scale = DType::kUInt8, .rows = 1, .columns = 32};
}

// The dtype that elements of the map are stored as, and how many of them share one.
DType element_dtype(ElementMap map);
constexpr std::int64_t elements_per_unit(ElementMap map) {
  return map == ElementMap::kFloat4 ? 2 : 1;
}

// "i8_bf16_1x128", "dynamic8_f32_16x16", "e2m1_e8m0_1x32": elements, scales, rows and columns of a
// block.
std::string to_string(const BlockFormat& format);
// The inverse; nothing for another text, or for a block without rows or columns.
std::optional<BlockFormat> block_format_from_string(std::string_view text);

}  // namespace anabatic
