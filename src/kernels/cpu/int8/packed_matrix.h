// SPDX-License-Identifier: Apache-2.0
// Matrices of a weight in panels of int8 products (tensor/panels.h), as lines to write. One
// namespace an instruction set, as vector_math.h has it.
#pragma once
#include "kernels/cpu/call.h"
#include "kernels/cpu/int8/lines.h"
#include "kernels/cpu/vector_math.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// Matrix `matrix` of a stack, or the only one.
inline Int8Lines int8_matrix(const TensorView& packed, std::int64_t matrix) {
  const TensorType& type = *packed.type;
  const PanelShape shape = panel_shape(type);
  const std::int64_t tiles = ceil_div(type.dim(-2), kInt8Tile) * scale_columns(type),
                     sums = shape.num_panels() * int8_blocks(shape.depth) * kPanelColumns;
  Int8Lines lines{.in_panels = true};
  lines.codes = packed.as<std::int8_t>() + matrix * shape.num_elements();
  lines.scales = packed.scales<BFloat16>() + matrix * tiles;
  lines.compensation = packed.compensations() + matrix * sums;
  return lines;
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
