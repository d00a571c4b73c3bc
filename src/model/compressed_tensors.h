// SPDX-License-Identifier: Apache-2.0
// Weights as the package compressed-tensors stores them, in place of a matrix "X": integers
// "X_packed", a scale for a row or for each group of it, "X_scale", and the matrix' shape,
// "X_shape". In int4_group and int8_channel integers are biased to be positive, and fill words of
// 32 bits from the lowest on. In mxfp4 two elements share a byte, and there is no shape.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "tensor/weight_grid.h"

namespace anabatic::model {

std::string packed_name(std::string_view matrix);
std::string packed_scales_name(std::string_view matrix);
std::string packed_shape_name(std::string_view matrix);

// Whether the format has such tensors: not those of GGUF.
bool is_packed_format(GridFormat format);

// The tensors of a matrix [rows, columns].
std::vector<io::TensorInfo> packed_infos(const std::string& matrix, const WeightGrid& grid,
                                         const std::vector<std::int64_t>& shape);
// The bytes of "X_shape"; none in mxfp4.
std::vector<std::byte> packed_shape(const WeightGrid& grid, const std::vector<std::int64_t>& shape);

// What such tensors of a matrix of so many columns hold; nothing where they cannot be its.
std::optional<WeightGrid> packed_grid(const io::TensorEntry& packed, const io::TensorEntry& scales,
                                      std::int64_t columns);

// Bytes of a row, in "X_packed" and "X_scale".
struct PackedRow {
  std::int64_t elements, scales;
};
PackedRow packed_row(const WeightGrid& grid, std::int64_t columns);

// Whole rows.
void pack_rows(const WeightGrid& grid, std::int64_t columns, std::span<const float> values,
               std::vector<std::byte>& packed, std::vector<std::byte>& scales);
void unpack_rows(const WeightGrid& grid, std::int64_t columns, std::span<const std::byte> packed,
                 std::span<const std::byte> scales, std::span<float> values);

}  // namespace anabatic::model
