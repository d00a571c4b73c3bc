// SPDX-License-Identifier: Apache-2.0
#include "model/compressed_tensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "io/block_types.h"
#include "tensor/grid_elements.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kWordBits = 32;

int bits_of(GridFormat format) { return format == GridFormat::kInt8Channel ? 8 : 4; }

std::int64_t words_of(GridFormat format, std::int64_t columns) {
  return ceil_div(columns * bits_of(format), kWordBits);
}

std::int64_t scales_of(const WeightGrid& grid, std::int64_t columns) {
  return grid.group > 0 ? columns / grid.group : 1;
}

// Calls body with the encoder of the format, and what is added to its integers in files.
template <class Body>
void with_integers(GridFormat format, Body&& body) {
  if (format == GridFormat::kInt8Channel)
    body(GridElements<GridFormat::kInt8Channel>{}, 128);
  else
    body(GridElements<GridFormat::kInt4Group>{}, 8);
}

template <class T>
T* elements(std::vector<std::byte>& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}

template <class Encoder>
void pack_row(const WeightGrid& grid, std::span<const float> row, int bias, std::uint32_t* words,
              BFloat16* scales) {
  const int bits = bits_of(grid.format);
  const std::size_t group = grid.group > 0 ? static_cast<std::size_t>(grid.group) : row.size(),
                    in_word = static_cast<std::size_t>(kWordBits / bits);
  for (std::size_t first = 0; first < row.size(); first += group) {
    const auto values = row.subspan(first, group);
    const float largest =
        *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); });
    const GridScale scale = Encoder::scale_of(largest);
    *scales++ = to_bfloat16(scale.scale);
    for (std::size_t i = 0; i < group; ++i) {
      const auto code =
          static_cast<std::uint32_t>(Encoder::element_of(values[i], scale.rule) + bias);
      const std::size_t at = first + i;
      words[at / in_word] |= code << (at % in_word * static_cast<std::size_t>(bits));
    }
  }
}

template <class Encoder>
void unpack_row(const WeightGrid& grid, std::span<float> row, int bias, const std::byte* words,
                const std::byte* scales) {
  const int bits = bits_of(grid.format);
  const std::size_t group = grid.group > 0 ? static_cast<std::size_t>(grid.group) : row.size(),
                    in_word = static_cast<std::size_t>(kWordBits / bits);
  for (std::size_t i = 0; i < row.size(); ++i) {
    BFloat16 scale;
    std::uint32_t word;
    std::memcpy(&scale, scales + i / group * sizeof scale, sizeof scale);
    std::memcpy(&word, words + i / in_word * sizeof word, sizeof word);
    const std::uint32_t code =
        word >> (i % in_word * static_cast<std::size_t>(bits)) & ((1u << bits) - 1u);
    row[i] = Encoder::value_of(static_cast<std::int32_t>(code) - bias, to_float(scale));
  }
}

}  // namespace

std::string packed_name(std::string_view matrix) { return fmt::format("{}_packed", matrix); }
std::string packed_scales_name(std::string_view matrix) { return fmt::format("{}_scale", matrix); }
std::string packed_shape_name(std::string_view matrix) { return fmt::format("{}_shape", matrix); }

bool is_packed_format(GridFormat format) {
  return format != GridFormat::kQ8_0 && format != GridFormat::kQ4_0;
}

std::vector<io::TensorInfo> packed_infos(const std::string& matrix, const WeightGrid& grid,
                                         const std::vector<std::int64_t>& shape) {
  ANABATIC_CHECK(is_packed_format(grid.format) && shape.size() == 2,
                 "[compressed-tensors] {} of {} dimensions in {}", matrix, shape.size(),
                 to_string(grid));
  const std::int64_t rows = shape[0], columns = shape[1], scales = scales_of(grid, columns);
  if (grid.format == GridFormat::kMxfp4)
    return {{packed_name(matrix), DType::kUInt8, {rows, columns / 2}},
            {packed_scales_name(matrix), DType::kUInt8, {rows, scales}}};
  return {{packed_name(matrix), DType::kInt32, {rows, words_of(grid.format, columns)}},
          {packed_scales_name(matrix), DType::kBFloat16, {rows, scales}},
          {packed_shape_name(matrix), DType::kInt64, {2}}};
}

std::vector<std::byte> packed_shape(const WeightGrid& grid,
                                    const std::vector<std::int64_t>& shape) {
  if (grid.format == GridFormat::kMxfp4) return {};
  const auto bytes = std::as_bytes(std::span(shape));
  return {bytes.begin(), bytes.end()};
}

std::optional<WeightGrid> packed_grid(const io::TensorEntry& packed, const io::TensorEntry& scales,
                                      std::int64_t columns) {
  constexpr std::int64_t kMostInUnit = 8;  // of a word or a byte
  if (packed.shape.size() != 2 || scales.shape.size() != 2 || packed.shape[0] != scales.shape[0] ||
      columns <= 0 || columns / kMostInUnit > packed.shape[1])
    return std::nullopt;
  std::vector<WeightGrid> grids{weight_grid(GridFormat::kInt8Channel),
                                weight_grid(GridFormat::kMxfp4)};
  for (const std::int64_t group : kInt4Groups)
    grids.push_back(weight_grid(GridFormat::kInt4Group, group));
  for (const WeightGrid& grid : grids) {
    if (grid.group > 0 && columns % grid.group != 0) continue;
    const auto infos = packed_infos("", grid, {packed.shape[0], columns});
    if (infos[0].dtype == packed.dtype && infos[0].shape == packed.shape &&
        infos[1].dtype == scales.dtype && infos[1].shape == scales.shape)
      return grid;
  }
  return std::nullopt;
}

PackedRow packed_row(const WeightGrid& grid, std::int64_t columns) {
  const std::int64_t scales = scales_of(grid, columns);
  if (grid.format == GridFormat::kMxfp4) return {columns / 2, scales};
  return {words_of(grid.format, columns) * std::int64_t{sizeof(std::uint32_t)},
          scales * std::int64_t{sizeof(BFloat16)}};
}

void pack_rows(const WeightGrid& grid, std::int64_t columns, std::span<const float> values,
               std::vector<std::byte>& packed, std::vector<std::byte>& scales) {
  const auto width = static_cast<std::size_t>(columns), rows = values.size() / width;
  const PackedRow row = packed_row(grid, columns);
  packed.assign(rows * static_cast<std::size_t>(row.elements), std::byte{});
  scales.resize(rows * static_cast<std::size_t>(row.scales));
  if (grid.format == GridFormat::kMxfp4) return io::quantise_mxfp4_pairs(values, packed, scales);
  const std::int64_t words = words_of(grid.format, columns), per_row = scales_of(grid, columns);
  with_integers(grid.format, [&]<class Encoder>(Encoder, int bias) {
    for (std::size_t r = 0; r < rows; ++r)
      pack_row<Encoder>(grid, values.subspan(r * width, width), bias,
                        elements<std::uint32_t>(packed) + static_cast<std::int64_t>(r) * words,
                        elements<BFloat16>(scales) + static_cast<std::int64_t>(r) * per_row);
  });
}

void unpack_rows(const WeightGrid& grid, std::int64_t columns, std::span<const std::byte> packed,
                 std::span<const std::byte> scales, std::span<float> values) {
  if (grid.format == GridFormat::kMxfp4) return io::dequantise_mxfp4_pairs(packed, scales, values);
  const auto width = static_cast<std::size_t>(columns);
  const PackedRow row = packed_row(grid, columns);
  with_integers(grid.format, [&]<class Encoder>(Encoder, int bias) {
    for (std::size_t r = 0; r < values.size() / width; ++r)
      unpack_row<Encoder>(grid, values.subspan(r * width, width), bias,
                          packed.data() + r * static_cast<std::size_t>(row.elements),
                          scales.data() + r * static_cast<std::size_t>(row.scales));
  });
}

}  // namespace anabatic::model
