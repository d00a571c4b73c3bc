// SPDX-License-Identifier: Apache-2.0
// Rows of a row-major matrix brought into the panels of tensor/panels.h; f32 becomes bf16 half away
// from zero. One namespace an instruction set, as vector_math.h has it.
#pragma once
#include <utility>

#include "kernels/cpu/vector_math.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

template <int kStep, int... kLane>
ANABATIC_INLINE void exchange(Floats& a, Floats& b, std::integer_sequence<int, kLane...>) {
  const Floats first =
      __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane : kLane + kStep)...);
  a = first;
}

// A kLanes x kLanes transpose: off-diagonal blocks change places, small ones first.
template <int kStep = 1>
ANABATIC_INLINE void transpose(Floats* rows) {
  if constexpr (kStep < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if ((i & kStep) == 0)
        exchange<kStep>(rows[i], rows[i + kStep], std::make_integer_sequence<int, kLanes>{});
    transpose<2 * kStep>(rows);
  }
}

ANABATIC_INLINE Words weight_bits(Floats x) { return bf16_bits(x, Words{} + 0x8000u); }

// kLanes units of the depth: one f32 each, or two as bf16.
ANABATIC_INLINE void store_unit(float* to, Floats x, Floats) { std::memcpy(to, &x, sizeof x); }
ANABATIC_INLINE void store_unit(BFloat16* to, Floats first, Floats second) {
  const Words words = weight_bits(first) | weight_bits(second) << 16;
  std::memcpy(to, &words, sizeof words);
}

template <class To>
inline constexpr std::int64_t kUnitDepth = sizeof(To) == sizeof(BFloat16) ? 2 : 1;

// Up to 16 rows of `depth` elements, `stride` apart, to one panel whose columns they are.
template <class To, class From>
void pack_panel(To* panel, const From* source, std::int64_t stride, std::int64_t rows,
                std::int64_t depth) {
  constexpr std::int64_t kDepth = kUnitDepth<To>;
  for (std::int64_t k = 0; k < depth; k += kLanes) {
    const auto count = static_cast<int>(depth - k < kLanes ? depth - k : kLanes);
    for (std::int64_t column = 0; column < kPanelColumns; column += kLanes) {
      Floats block[kLanes];
      for (int i = 0; i < kLanes; ++i)
        block[i] = column + i < rows ? load(source + (column + i) * stride + k, count) : Floats{};
      transpose(block);
      for (int i = 0; i < count; i += static_cast<int>(kDepth))
        store_unit(panel + (k + i) * kPanelColumns + column * kDepth, block[i],
                   block[i + static_cast<int>(kDepth) - 1]);
    }
  }
}

// Rows [begin, end) of a matrix of `columns` elements a row, which `source` begins with, to the
// panels whose depth they are. `begin` is a multiple of the unit's depth, and `end` too unless it
// is the last row.
template <class To, class From>
void pack_depth(To* panels, const PanelShape& shape, const From* source, std::int64_t stride,
                std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kDepth = kUnitDepth<To>, kStrip = 4 * kPanelColumns;
  const std::int64_t panel = shape.panel_elements();
  for (std::int64_t strip = 0; strip < shape.columns; strip += kStrip)
    for (std::int64_t n = begin; n < end; n += kDepth) {
      const From* row = source + (n - begin) * stride;
      const std::int64_t last = strip + kStrip < shape.columns ? strip + kStrip : shape.columns;
      for (std::int64_t k = strip; k < last; k += kPanelColumns)
        for (std::int64_t lane = 0; lane < kPanelColumns; lane += kLanes) {
          const std::int64_t left = shape.columns - k - lane;
          const auto count = static_cast<int>(left < 0 ? 0 : left < kLanes ? left : kLanes);
          const Floats first = load(row + k + lane, count);
          const Floats second =
              kDepth == 2 && n + 1 < end ? load(row + stride + k + lane, count) : Floats{};
          store_unit(panels + k / kPanelColumns * panel + n * kPanelColumns + lane * kDepth, first,
                     second);
        }
    }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
