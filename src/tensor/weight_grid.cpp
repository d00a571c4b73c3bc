// SPDX-License-Identifier: Apache-2.0
#include "tensor/weight_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tensor/grid_elements.h"

namespace anabatic {

std::string_view to_string(GridFormat format) {
  switch (format) {
    case GridFormat::kInt8Channel:
      return "int8_channel";
    case GridFormat::kInt4Group:
      return "int4_group";
    case GridFormat::kQ8_0:
      return "q8_0";
    case GridFormat::kQ4_0:
      return "q4_0";
    case GridFormat::kMxfp4:
      return "mxfp4";
  }
  return "";
}

std::optional<GridFormat> grid_format_from_string(std::string_view text) {
  for (const GridFormat format : kGridFormats)
    if (to_string(format) == text) return format;
  return std::nullopt;
}

WeightGrid weight_grid(GridFormat format, std::int64_t group) {
  if (format == GridFormat::kInt8Channel) return {format, 0};
  return {format, format == GridFormat::kInt4Group ? group : 32};
}

std::string to_string(const WeightGrid& grid) {
  std::string out(to_string(grid.format));
  if (grid.format == GridFormat::kInt4Group) out += '_' + std::to_string(grid.group);
  return out;
}

std::optional<WeightGrid> weight_grid_from_string(std::string_view text) {
  for (const GridFormat format : kGridFormats)
    for (const std::int64_t group : kInt4Groups)
      if (const WeightGrid grid = weight_grid(format, group); to_string(grid) == text) return grid;
  return std::nullopt;
}

std::uint8_t e8m0_of(float largest) {
  constexpr int kFromBias = 2;
  // Mantissas that the logarithm may round up begin above this one, whatever the exponent.
  constexpr std::uint32_t kNearPower = 0x7FFF00u;
  if (!(largest > 0.0f)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  const auto exponent = static_cast<int>(bits >> 23);
  if (exponent > kFromBias && (bits & 0x7FFFFFu) < kNearPower)
    return static_cast<std::uint8_t>(std::min(exponent - kFromBias, 252));
  const double power = std::floor(static_cast<float>(std::log2(static_cast<double>(largest))));
  return static_cast<std::uint8_t>(std::clamp(power + 125.0, 0.0, 252.0));
}

}  // namespace anabatic
