// SPDX-License-Identifier: Apache-2.0
// Grids of values that weights are trained on and stored in: what an element may be, and how many
// elements of a row share a scale. tensor/grid_elements.h has their encoders.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic {

enum class GridFormat : std::uint8_t {
  kInt8Channel,  // 8 bits, a bf16 scale a row
  kInt4Group,    // 4 bits, a bf16 scale a group
  kQ8_0,         // GGUF: 8 bits, an f16 scale for 32
  kQ4_0,         // GGUF: 4 bits, an f16 scale for 32
  kMxfp4         // E2M1, a power of two for 32
};
inline constexpr std::array kGridFormats{GridFormat::kInt8Channel, GridFormat::kInt4Group,
                                         GridFormat::kQ8_0, GridFormat::kQ4_0, GridFormat::kMxfp4};
inline constexpr std::array<std::int64_t, 3> kInt4Groups{32, 64, 128};

std::string_view to_string(GridFormat format);  // "int8_channel", "int4_group", "q8_0", ...
std::optional<GridFormat> grid_format_from_string(std::string_view text);

struct WeightGrid {
  GridFormat format = GridFormat::kQ8_0;
  std::int64_t group = 32;  // elements of a row that share a scale; 0: the whole row

  bool operator==(const WeightGrid&) const = default;
};

// The grid of a format; `group` counts for kInt4Group alone.
WeightGrid weight_grid(GridFormat format, std::int64_t group = 32);

// "q8_0", "int4_group_64".
std::string to_string(const WeightGrid& grid);
std::optional<WeightGrid> weight_grid_from_string(std::string_view text);

}  // namespace anabatic
