// SPDX-License-Identifier: Apache-2.0
// Matrices that files hold the other way round.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace anabatic::model {

// to[c, r] = from[r, c], by square blocks that stay in a cache. `from` has whole rows of `columns`;
// rows of `to` begin `stride` elements apart.
inline void transpose(std::span<const float> from, std::int64_t columns, std::span<float> to,
                      std::int64_t stride) {
  constexpr std::int64_t kSquare = 32;
  if (from.empty()) return;
  const std::int64_t rows = static_cast<std::int64_t>(from.size()) / columns;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kSquare)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kSquare)
      for (std::int64_t c = c0; c < std::min(columns, c0 + kSquare); ++c)
        for (std::int64_t r = r0; r < std::min(rows, r0 + kSquare); ++r)
          to[static_cast<std::size_t>(c * stride + r)] =
              from[static_cast<std::size_t>(r * columns + c)];
}

}  // namespace anabatic::model
