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

  // The line of a mask for a row of a matrix.
  ANABATIC_INLINE const std::uint8_t* line(std::int64_t matrix, std::int64_t row) const {
    return mask + (matrix * mask_rows + row / block) * mask_columns;
  }
};

// Eight elements from `first` on, in rows of all matrices.
ANABATIC_INLINE std::uint8_t of_elements(const Geometry& at, std::int64_t first, std::int64_t end) {
  std::uint32_t byte = 0;
  const std::int64_t count = std::min<std::int64_t>(8, end - first);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = (first + i) / at.columns, column = (first + i) % at.columns;
    const std::uint8_t* const line = at.line(row / at.rows, row % at.rows);
    byte |= static_cast<std::uint32_t>(line[column / at.block] & 1) << i;
  }
  return static_cast<std::uint8_t>(byte);
}
// The same where each has its own: a product collects the lowest bits of eight bytes.
ANABATIC_INLINE std::uint8_t of_bytes(const std::uint8_t* mask) {
  std::uint64_t bytes;
  std::memcpy(&bytes, mask, sizeof bytes);
  return static_cast<std::uint8_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

// Those of a call whose mask is for weights laid out in rows or panels as `state`, f32.
inline Geometry geometry_of(const Arguments& args, const TensorView& mask,
                            const TensorType& state) {
  return {.mask = mask.as<const std::uint8_t>(),
          .rows = state.dim(-2),
          .columns = state.dim(-1),
          .block = spec::mask_block(*spec::mask_of(*args.attributes)),
          .mask_rows = mask.type->dim(-2),
          .mask_columns = mask.type->dim(-1)};
}

// Most blocks along a row for for_present.
inline constexpr std::int64_t kMostBlocks = 2048;

// Calls body(first, last) for each block of each row of the elements [begin, end) of all matrices
// that is present, in ascending order. The blocks of a line of the mask are listed once for all its
// rows: branches on a mask would be foreseen badly.
template <class Body>
ANABATIC_INLINE void for_present(const Geometry& at, std::int64_t begin, std::int64_t end,
                                 Body&& body) {
  std::uint16_t blocks[kMostBlocks];
  std::int64_t row = begin / at.columns;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t in_matrix = row % at.rows;
    const std::uint8_t* const line = at.line(row / at.rows, in_matrix);
    std::int64_t count = 0;
    for (std::int64_t block = 0; block < at.mask_columns; ++block) {
      blocks[count] = static_cast<std::uint16_t>(block);
      count += line[block] != 0;
    }
    const std::int64_t next_line =
        row + std::min(at.block - in_matrix % at.block, at.rows - in_matrix);
    for (; row < next_line && i < end; ++row) {
      const std::int64_t first = row * at.columns, from = i - first,
                         to = std::min(end - first, at.columns);
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t column = blocks[n] * at.block;
        const std::int64_t left = std::max(column, from), right = std::min(column + at.block, to);
        if (left < right) body(first + left, first + right);
      }
      i = first + to;
    }
  }
}

// Fetches elements [first, last) of an array some rows further on, where for_present mostly goes on
// with the same block: the hardware does not follow blocks.
template <class T>
ANABATIC_INLINE void prefetch_below(const Geometry& at, const T* x, std::int64_t first,
                                    std::int64_t last) {
  constexpr std::int64_t kRows = 4, kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  const T* const below = x + kRows * at.columns;
  for (std::int64_t i = first; i < last; i += kLine) __builtin_prefetch(below + i);
}

// Calls body(first, last, is_present) for the blocks along `count` elements of a line.
template <class Body>
ANABATIC_INLINE void for_blocks(const std::uint8_t* line, std::int64_t block, std::int64_t count,
                                Body&& body) {
  for (std::int64_t first = 0; first < count; first += block)
    body(first, std::min(first + block, count), *line++ != 0);
}

// A panel from `column` on: a word of 16 columns for each element of the depth.
ANABATIC_INLINE void of_panel(const Geometry& at, std::int64_t matrix, std::int64_t column,
                              std::uint16_t* words) {
  const std::int64_t depth = at.columns;
  if (at.block > 1) {  // whose rows are whole panels
    for_blocks(at.line(matrix, column), at.block, depth,
               [&](std::int64_t first, std::int64_t last, bool is_present) {
                 std::memset(words + first, is_present ? 0xFF : 0,
                             static_cast<std::size_t>(2 * (last - first)));
               });
    return;
  }
  std::memset(words, 0, static_cast<std::size_t>(2 * depth));
  const std::int64_t columns = std::min(kPanelColumns, at.rows - column);
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::uint8_t* const line = at.line(matrix, column + c);
    for (std::int64_t k = 0; k < depth; ++k)
      words[k] = static_cast<std::uint16_t>(words[k] | (line[k] & 1) << c);
  }
}

}  // namespace mask_bits

// The bits of a mask of weights laid out as `state`, f32, at the beginning of the workspace.
inline const std::uint8_t* expand_mask(const Arguments& args, const TensorView& mask,
                                       const TensorType& state) {
  auto* const bits = reinterpret_cast<std::uint8_t*>(args.workspace);
  device::ThreadTeam& team = *args.launch.team;
  const mask_bits::Geometry at = mask_bits::geometry_of(args, mask, state);
  const std::int64_t block = at.block;
  constexpr std::int64_t kBytes = 4096;
  const std::int64_t matrices = state.ndim() == 3 ? state.dim(0) : 1;
  if (is_panels(state.layout)) {
    const std::int64_t depth = at.columns, panels = ceil_div(at.rows, kPanelColumns);
    team.for_range(matrices * panels, ceil_div(kBytes, 2 * depth),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t panel = begin; panel < end; ++panel)
                       mask_bits::of_panel(at, panel / panels, panel % panels * kPanelColumns,
                                           reinterpret_cast<std::uint16_t*>(bits) + panel * depth);
                   });
    return bits;
  }
  if (block % 8 == 0 && at.columns % 8 == 0) {  // whole bytes
    const std::int64_t row_bytes = at.columns / 8;
    team.for_range(
        matrices * at.rows, ceil_div(kBytes, row_bytes), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row)
            mask_bits::for_blocks(at.line(row / at.rows, row % at.rows), block / 8, row_bytes,
                                  [&](std::int64_t first, std::int64_t last, bool is_present) {
                                    std::memset(bits + row * row_bytes + first,
                                                is_present ? 0xFF : 0,
                                                static_cast<std::size_t>(last - first));
                                  });
        });
    return bits;
  }
  const std::int64_t elements = state.num_elements();
  team.for_range(ceil_div(elements, 8), kBytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t byte = begin; byte < end; ++byte)
      bits[byte] = block == 1 && 8 * byte + 8 <= elements
                       ? mask_bits::of_bytes(at.mask + 8 * byte)
                       : mask_bits::of_elements(at, 8 * byte, elements);
  });
  return bits;
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
