// SPDX-License-Identifier: Apache-2.0
// Rows of one head, and the keys that they see, for any form of attention's operands.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/cpu/attention/attention_shape.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

inline constexpr int kRows = kTileRows;

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// One head of a tensor: row t lies at data + t · stride.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride, width;

  HeadRows(const TensorView& view, std::int64_t head, std::int64_t head_width)
      : data(view.as<T>() + head * head_width), stride(columns(view)), width(head_width) {}
  T* row(std::int64_t t) const { return data + t * stride; }
};

// Rows of one head are far apart in memory: the hardware does not prefetch them.
inline constexpr std::int64_t kPrefetchRows = 8;

// Prefetches rows [first, first + count) into the second cache: to be read, or (T is not const)
// written.
template <class T>
void prefetch(const HeadRows<T>& from, std::int64_t first, std::int64_t count) {
  constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < from.width; j += kLine) {
      if constexpr (std::is_const_v<T>)
        __builtin_prefetch(from.row(first + i) + j, 0, 2);
      else
        __builtin_prefetch(from.row(first + i) + j, 1, 2);
    }
}

// Ranges of rows, which range_of(t) gives, and of their register tiles, in keys from `origin` on
// and cut to [0, count). Rows that fill the last tile see what the last row sees.
template <class RangeOf>
void find_ranges(RangeOf&& range_of, const RowBlock& rows, std::int64_t origin, std::int64_t count,
                 std::int32_t* begins, std::int32_t* ends, TileRange* tiles) {
  const auto cut = [&](std::int64_t key) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(key - origin, 0, count));
  };
  for (std::int32_t i = 0; i < rows.count; i += kRows) {
    TileRange tile{INT32_MAX, 0, 0, INT32_MAX};
    for (std::int32_t r = i; r < i + kRows; ++r) {
      const KeyRange keys = range_of(rows.first + std::min(r, rows.count - 1));
      begins[r] = cut(keys.begin);
      ends[r] = cut(keys.end);
      tile.full_begin = std::max(tile.full_begin, begins[r]);
      tile.full_end = std::min(tile.full_end, ends[r]);
      if (begins[r] >= ends[r]) continue;
      tile.begin = std::min(tile.begin, begins[r]);
      tile.end = std::max(tile.end, ends[r]);
    }
    tiles[i / kRows] = tile;
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
