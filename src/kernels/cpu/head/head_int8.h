// SPDX-License-Identifier: Apache-2.0
// Operands of the int8 products of a head with its loss, and their room.
#pragma once
#include <algorithm>
#include <array>

#include "kernels/cpu/head/head_tiling.h"
#include "kernels/cpu/int8/line_arrays.h"

namespace anabatic::kernels::cpu::head {

// Classes whose weight gradient is computed at a time.
inline constexpr Int kInt8Classes = 64;

// x of the logits, and of the weight gradient.
inline Int8LinesShape int8_x_rows(const Shape& shape, Int rows) {
  return {.lines = rows,
          .depth = shape.width,
          .in_panels = false,
          .has_compensation = false,
          .has_second = shape.fallback < kNoFallback};
}
inline Int8LinesShape int8_x_panels(const Shape& shape, Int depth) {
  return {.lines = shape.width,
          .depth = depth,
          .in_panels = true,
          .has_compensation = true,
          .has_second = shape.fallback < kNoFallback};
}
// Exponentials: rows of the input gradient, and classes of the weight gradient.
inline Int8LinesShape int8_exponentials(const Shape& shape, const Tiling& tiling) {
  return {.lines = tiling.block_rows,
          .depth = std::min(tiling.step_columns, shape.classes),
          .in_panels = false,
          .has_compensation = false,
          .has_second = false};
}
inline Int8LinesShape int8_probabilities(const Shape& shape, Int depth) {
  return {.lines = std::min(kInt8Classes, shape.classes),
          .depth = depth,
          .in_panels = false,
          .has_compensation = false,
          .has_second = false};
}

// The weights of a step of `columns` classes: panels of classes, and of columns. Their scales,
// [tiles of classes][tiles of columns], are the same.
struct Int8StepWeights {
  Int8Lines classes, columns;
  Int bytes;

  Int8StepWeights(std::byte* base, Int num_classes, Int width);
};
inline Int int8_step_bytes(Int num_classes, Int width) {
  return Int8StepWeights(nullptr, num_classes, width).bytes;
}

// Logits, input gradient and weight gradient, without operands.
std::array<Gemm, 3> int8_products(const Shape& shape, const Tiling& tiling);

}  // namespace anabatic::kernels::cpu::head
