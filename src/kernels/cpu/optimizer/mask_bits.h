// SPDX-License-Identifier: Apache-2.0
// A mask of blocks (spec/sparsity.h) as one bit for each stored element of an f32 state, in rows or
// in panels: a sweep then needs no more than the place of an element. Bit i % 8 of byte i / 8 is 1
// where element i is present. One namespace an instruction set, as vector_math.h has it.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/rounding.h"
#include "device/thread_team.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/optimizer/rows.h"
#include "kernels/cpu/vector_math.h"
#include "spec/sparsity.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// All ones in the lanes whose elements, from `first` on, are present.
ANABATIC_INLINE Words present(const std::uint8_t* bits, std::int64_t first) {
  std::uint32_t word;
  std::memcpy(&word, bits + (first >> 3), sizeof word);
  Words lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<std::uint32_t>(i);
  const Words bit = ((Words{} + (word >> (first & 7))) >> lanes) & 1u;
  return Words{} - bit;
}
ANABATIC_INLINE Floats where(Words present, Floats x) {
  return reinterpret_cast<Floats>(reinterpret_cast<Words>(x) & present);
}

ANABATIC_INLINE bool has_bits(Words x) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(x)) != 0;
#elif ANABATIC_ISA_LANES == 8
  return _mm256_testz_si256(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(x)) == 0;
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= x[i];
  return bits != 0;
#endif
}

namespace mask_bits {

// A mask next to the weight that it is of.
struct Geometry {
  const std::uint8_t* mask;
  std::int64_t rows, columns, block, mask_rows, mask_columns;

  ANABATIC_INLINE const std::uint8_t* row(std::int64_t matrix, std::int64_t row) const {
    return mask + (matrix * mask_rows + row / block) * mask_columns;
  }
};

// Eight elements from `first` on, in rows of all matrices.
ANABATIC_INLINE std::uint8_t of_rows(const Geometry& at, std::int64_t first, std::int64_t end) {
  std::uint32_t byte = 0;
  const std::int64_t count = std::min<std::int64_t>(8, end - first);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = (first + i) / at.columns, column = (first + i) % at.columns;
    const std::uint8_t* const line = at.row(row / at.rows, row % at.rows);
    byte |= static_cast<std::uint32_t>(line[column / at.block] & 1) << i;
  }
  return static_cast<std::uint8_t>(byte);
}
// The same where eight elements are in one block of one row.
ANABATIC_INLINE std::uint8_t of_block(const Geometry& at, std::int64_t first) {
  const std::int64_t row = first / at.columns, column = first % at.columns;
  return at.row(row / at.rows, row % at.rows)[column / at.block] != 0 ? 0xFF : 0;
}
// The same where each element has its own.
ANABATIC_INLINE std::uint8_t of_elements(const std::uint8_t* mask) {
  std::uint32_t byte = 0;
  for (int i = 0; i < 8; ++i) byte |= static_cast<std::uint32_t>(mask[i] & 1) << i;
  return static_cast<std::uint8_t>(byte);
}

// Rows [begin, end) of the depth of a panel: a word of 16 columns each.
ANABATIC_INLINE void of_panel(const Geometry& at, std::int64_t matrix, std::int64_t column,
                              std::int64_t begin, std::int64_t end, std::uint16_t* words) {
  if (at.block > 1) {  // whose rows are whole panels
    const std::uint8_t* const line = at.row(matrix, column);
    for (std::int64_t k = begin; k < end; ++k) words[k] = line[k / at.block] != 0 ? 0xFFFF : 0;
    return;
  }
  std::fill(words + begin, words + end, std::uint16_t{0});
  const std::int64_t columns = std::min(kPanelColumns, at.rows - column);
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::uint8_t* const line = at.row(matrix, column + c);
    for (std::int64_t k = begin; k < end; ++k)
      words[k] = static_cast<std::uint16_t>(words[k] | (line[k] & 1) << c);
  }
}

}  // namespace mask_bits

// The bits of a mask of weights laid out as `state`, f32, at the beginning of the workspace.
inline const std::uint8_t* expand_mask(const Arguments& args, const TensorView& mask,
                                       const TensorType& state) {
  auto* const bits = reinterpret_cast<std::uint8_t*>(args.workspace);
  device::ThreadTeam& team = *args.launch.team;
  const std::int64_t block = spec::mask_block(*spec::mask_of(*args.attributes));
  const mask_bits::Geometry at{.mask = mask.as<const std::uint8_t>(),
                               .rows = state.dim(-2),
                               .columns = state.dim(-1),
                               .block = block,
                               .mask_rows = mask.type->dim(-2),
                               .mask_columns = mask.type->dim(-1)};
  constexpr std::int64_t kBytes = 4096;
  if (is_panels(state.layout)) {
    const std::int64_t depth = at.columns, panels = ceil_div(at.rows, kPanelColumns),
                       matrices = state.ndim() == 3 ? state.dim(0) : 1;
    team.for_range(
        matrices * panels, ceil_div(kBytes, 2 * depth), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t panel = begin; panel < end; ++panel)
            mask_bits::of_panel(at, panel / panels, panel % panels * kPanelColumns, 0, depth,
                                reinterpret_cast<std::uint16_t*>(bits) + panel * depth);
        });
    return bits;
  }
  const std::int64_t elements = state.num_elements();
  const bool is_of_blocks = block % 8 == 0 && at.columns % 8 == 0;
  team.for_range(ceil_div(elements, 8), kBytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t byte = begin; byte < end; ++byte) {
      const std::int64_t first = 8 * byte;
      bits[byte] = is_of_blocks                          ? mask_bits::of_block(at, first)
                   : block == 1 && first + 8 <= elements ? mask_bits::of_elements(at.mask + first)
                                                         : mask_bits::of_rows(at, first, elements);
    }
  });
  return bits;
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
