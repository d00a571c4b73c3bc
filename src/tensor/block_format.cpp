// SPDX-License-Identifier: Apache-2.0
#include "tensor/block_format.h"

#include <fmt/core.h>

#include <array>
#include <charconv>

namespace anabatic {
namespace {

struct MapRow {
  std::string_view text;
  DType dtype;
};

// In the order of ElementMap.
constexpr std::array<MapRow, 4> kMaps{{{"i8", DType::kInt8},
                                       {"dynamic8", DType::kUInt8},
                                       {"udynamic8", DType::kUInt8},
                                       {"e2m1", DType::kUInt8}}};
constexpr std::string_view kE8M0 = "e8m0";

const MapRow& row_of(ElementMap map) { return kMaps.at(static_cast<std::size_t>(map)); }

// A positive number, without sign or leading zeroes: one text a format.
std::optional<std::int64_t> size_from_string(std::string_view text) {
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc{} || end != text.data() + text.size() || size <= 0 || text[0] == '0')
    return std::nullopt;
  return size;
}

}  // namespace

DType element_dtype(ElementMap map) { return row_of(map).dtype; }

std::string to_string(const BlockFormat& format) {
  const std::string_view scale = format.scale == DType::kUInt8 ? kE8M0 : to_string(format.scale);
  return fmt::format("{}_{}_{}x{}", row_of(format.map).text, scale, format.rows, format.columns);
}

std::optional<BlockFormat> block_format_from_string(std::string_view text) {
  if (text == to_string(mxfp4_format())) return mxfp4_format();
  const auto scale_at = text.find('_'), block_at = text.rfind('_'), by = text.rfind('x');
  if (scale_at == std::string_view::npos || block_at == scale_at || by == std::string_view::npos ||
      by < block_at)
    return std::nullopt;
  const auto scale = dtype_from_string(text.substr(scale_at + 1, block_at - scale_at - 1));
  const auto rows = size_from_string(text.substr(block_at + 1, by - block_at - 1)),
             columns = size_from_string(text.substr(by + 1));
  if (!scale || !rows || !columns) return std::nullopt;
  if (*scale != DType::kFloat64 && *scale != DType::kFloat32 && *scale != DType::kBFloat16)
    return std::nullopt;
  for (std::size_t i = 0; i < kMaps.size(); ++i)
    if (const auto map = static_cast<ElementMap>(i);
        map != ElementMap::kFloat4 && kMaps[i].text == text.substr(0, scale_at))
      return BlockFormat{map, *scale, *rows, *columns};
  return std::nullopt;
}

}  // namespace anabatic
