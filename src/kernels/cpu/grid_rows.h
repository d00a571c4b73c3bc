// SPDX-License-Identifier: Apache-2.0
// Rows of f32 panels rounded to a weight grid. Sixteen rows of a weight are the lanes of a panel,
// and a group runs along the depth: so scales and elements of sixteen groups are found at once,
// without sums or maxima across lanes. For the vector sources alone.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/cpu/vector_math.h"
#include "spec/attributes.h"
#include "tensor/grid_elements.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

using Lanes = float[kPanelColumns];

// The grid of the attribute `grid`; nothing without it, or in a step below that of `delay`.
inline std::optional<WeightGrid> grid_at(const spec::Attributes& attributes,
                                         const std::int32_t* step) {
  const auto found = attributes.find("grid");
  const std::int64_t delay = spec::get_int_or(attributes, "delay", 0);
  if (found == attributes.end() || (delay > 0 && *step < delay)) return std::nullopt;
  return weight_grid_from_string(spec::get_string(attributes, "grid"));
}

// Takes elements of a larger magnitude: in the end the first one of the largest.
ANABATIC_INLINE void take_largest(const float* x, std::int64_t depth, Lanes& largest) {
  for (int lane = 0; lane < kPanelColumns; lane += kLanes) {
    Floats most = load(largest + lane);
    for (std::int64_t k = 0; k < depth; ++k) {
      const Floats value = load(x + k * kPanelColumns + lane);
      most = magnitude_of(value) > magnitude_of(most) ? value : most;
    }
    store(largest + lane, most);
  }
}

struct LaneScales {
  alignas(64) Lanes scale, rule;
};

// Lanes beyond `count` are padding, whose values are +0.
template <class Encoder>
ANABATIC_INLINE LaneScales scales_of(const Lanes& largest, std::int64_t count) {
  LaneScales scales;
  for (int lane = 0; lane < kPanelColumns; ++lane) {
    const GridScale one = Encoder::scale_of(largest[lane]);
    scales.scale[lane] = lane < count ? one.scale : 0.0f;
    scales.rule[lane] = one.rule;
  }
  return scales;
}

template <class Encoder, class To>
ANABATIC_INLINE void round_to_grid(const float* x, std::int64_t depth, const LaneScales& scales,
                                   To* y) {
  for (int lane = 0; lane < kPanelColumns; lane += kLanes) {
    const Floats scale = load(scales.scale + lane), rule = load(scales.rule + lane);
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t i = k * kPanelColumns + lane;
      store(y + i, Encoder::value_of(Encoder::element_of(load(x + i), rule), scale));
    }
  }
}

// Rows [depth][16] of whole groups, of which `count` lanes are no padding.
template <class Encoder, class To>
ANABATIC_INLINE void round_groups(const float* x, std::int64_t depth, std::int64_t group,
                                  std::int64_t count, To* y) {
  for (std::int64_t k = 0; k < depth; k += group) {
    alignas(64) Lanes largest;
    const float* of_group = x + k * kPanelColumns;
    std::copy_n(of_group, kPanelColumns, largest);
    take_largest(of_group, group, largest);
    round_to_grid<Encoder>(of_group, group, scales_of<Encoder>(largest, count),
                           y + k * kPanelColumns);
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
