// SPDX-License-Identifier: Apache-2.0
// Room for the arrays of Int8Lines in workspace: their sizes, and their places one after the other.
#pragma once
#include "kernels/cpu/int8/lines.h"

namespace anabatic::kernels::cpu {

inline constexpr std::int64_t kInt8Alignment = 64;

struct Int8LinesShape {
  std::int64_t lines, depth;
  bool in_panels, has_compensation, has_second;
};

// Rows do not begin at equal places of a page, which would compete for the same lines of a cache.
constexpr std::int64_t int8_line_stride(std::int64_t depth) {
  return round_up(depth, kInt8Alignment) + kInt8Alignment;
}

// Elements of the arrays of Int8Lines, for so many units and blocks of the depth.
struct Int8ArraySizes {
  std::int64_t codes, scales, compensation, flags;
};
constexpr Int8ArraySizes int8_array_sizes(const Int8LinesShape& shape, std::int64_t units,
                                          std::int64_t blocks) {
  if (!shape.in_panels) {
    const std::int64_t scales = shape.lines * blocks;
    return {.codes = shape.lines * int8_line_stride(shape.depth),
            .scales = scales,
            .compensation = 0,
            .flags = scales};
  }
  const std::int64_t panels = ceil_div(shape.lines, kInt8Panel),
                     scales = panels * blocks * kInt8Panel;
  return {.codes = panels * units * kInt8Panel * kInt8Unit,
          .scales = scales,
          .compensation = shape.has_compensation ? scales : 0,
          .flags = panels * blocks};
}

// Calls place(count, pointer of Int8Lines) for each array.
template <class Place>
void for_int8_arrays(const Int8ArraySizes& sizes, bool has_second, Int8Lines& lines,
                     Place&& place) {
  place(sizes.codes, lines.codes);
  place(sizes.scales, lines.scales);
  if (sizes.compensation > 0) place(sizes.compensation, lines.compensation);
  if (!has_second) return;
  place(sizes.codes, lines.second_codes);
  place(sizes.flags, lines.falls_back);
  if (sizes.compensation > 0) place(sizes.compensation, lines.second_compensation);
}

// Lines whose arrays begin at `next`, which then points after them.
inline Int8Lines int8_lines_at(const Int8LinesShape& shape, std::byte*& next) {
  Int8Lines lines{.in_panels = shape.in_panels,
                  .line_stride = int8_line_stride(shape.depth),
                  .scale_stride = int8_blocks(shape.depth)};
  for_int8_arrays(int8_array_sizes(shape, int8_units(shape.depth), int8_blocks(shape.depth)),
                  shape.has_second, lines, [&]<class T>(std::int64_t count, T*& pointer) {
                    pointer = reinterpret_cast<T*>(next);
                    next += round_up(count * std::int64_t{sizeof(T)}, kInt8Alignment);
                  });
  return lines;
}
inline std::int64_t int8_lines_bytes(const Int8LinesShape& shape) {
  std::int64_t bytes = 0;
  Int8Lines none;
  for_int8_arrays(int8_array_sizes(shape, int8_units(shape.depth), int8_blocks(shape.depth)),
                  shape.has_second, none, [&](std::int64_t count, auto* pointer) {
                    bytes += round_up(count * std::int64_t{sizeof *pointer}, kInt8Alignment);
                  });
  return bytes;
}

// Rows of `lines` from `row` on.
inline Int8Lines int8_rows_from(Int8Lines lines, std::int64_t row) {
  lines.codes += row * lines.line_stride;
  lines.scales += row * lines.scale_stride;
  if (lines.second_codes != nullptr) {
    lines.second_codes += row * lines.line_stride;
    lines.falls_back += row * lines.scale_stride;
  }
  return lines;
}

}  // namespace anabatic::kernels::cpu
