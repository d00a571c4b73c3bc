// SPDX-License-Identifier: Apache-2.0
// Products of operands in int8 with a scale for each block of 128 elements along the depth, one
// engine an instruction set. ARCHITECTURE.md ("int8 products") defines int8 values and products;
// every engine gives the bits of that definition, except for which NaN a NaN is.
//
//   C[i, j] = Σ over blocks, ascending, of fma(float(Σ a·b), scale_a · scale_b, C[i, j])
//
// Sums within a block are exact, so no cut of rows or columns changes bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/rounding.h"
#include "spec/device_spec.h"
#include "tensor/dtype.h"

namespace anabatic::device {
class ThreadTeam;
}

namespace anabatic::kernels::cpu {

inline constexpr std::int64_t kInt8Block = 128;  // elements along the depth that share a scale
inline constexpr std::int64_t kInt8Unit = 4;     // of them in a word
inline constexpr std::int64_t kInt8Panel = 16;   // lines of a panel
// A block of n elements has second values if n · max|code| > fallback · Σ|code|. As n <= 128 and
// Σ >= max, from 128 on none has.
inline constexpr int kNoFallback = 128;

constexpr std::int64_t int8_blocks(std::int64_t depth) { return ceil_div(depth, kInt8Block); }
constexpr std::int64_t int8_units(std::int64_t depth) { return ceil_div(depth, kInt8Unit); }

// The lines of an operand, in one of two layouts. Nothing here owns memory.
//
//   rows    int8 values [line][line_stride], scales and falls_back [line][scale_stride]
//   panels  of 16 lines (line_stride 0): int8 values [line/16][depth/4][16][4], 64-byte aligned;
//           scales, compensation [line/16][blocks][16]; falls_back [line/16][blocks]
//
// Int8 values of panels are 0 beyond the last line and the depth. Of rows, up to three bytes after
// the last element are read, and count for nothing.
struct Int8Lines {
  std::int8_t* codes = nullptr;
  BFloat16* scales = nullptr;
  std::int64_t line_stride = 0, scale_stride = 0;
  // -128 · Σ int8 values of a line and block. Right operands need it: engines that multiply
  // unsigned bytes add 128 to int8 values of the left one.
  std::int32_t* compensation = nullptr;
  // Null, or second values: x ≈ scale · (code + second / 254) in blocks that fall back. falls_back
  // is 0 or 1 for a row, and for a panel has a bit a line. Second values and compensations of a row
  // or panel without any such block stay as they were; its other lines have zeroes.
  std::int8_t* second_codes = nullptr;
  std::int32_t* second_compensation = nullptr;
  std::uint16_t* falls_back = nullptr;

  bool in_panels() const { return line_stride == 0; }
};

// C[rows, columns] (+)= A · Bᵀ, of lines of A and lines of B. At most one of them has second
// values.
struct Int8Product {
  std::int64_t rows = 0, columns = 0, depth = 0;
  Int8Lines a;
  Int8Lines b;  // panels, with compensation
  std::byte* c = nullptr;
  DType c_dtype = DType::kFloat32;  // bf16 is rounded once, half to even
  std::int64_t c_stride = 0;        // elements from row to row
  bool accumulate = false;          // f32 C only: the chain goes on from what C holds
  // C is not read again before it has left the caches, so whole tiles bypass them. For f32 C that
  // is 64-byte aligned, c_stride a multiple of 16.
  bool streams = false;
};

struct Int8Area {
  std::int64_t row_begin, row_end, column_begin, column_end;  // begins are multiples of 16
};

struct Int8Engine {
  const char* isa;  // its name in DeviceSpec::instruction_sets; null: runs everywhere
  void (*compute)(const Int8Product&, const Int8Area&);
};

// Null where the compiler or the target has no such instructions.
const Int8Engine* int8_portable();
const Int8Engine* int8_avx2();
const Int8Engine* int8_avx512_vnni();

// The fastest one that `device` can run.
const Int8Engine& int8_engine(const spec::DeviceSpec& device);

// InternalError for a product that breaks the rules above. Areas of it go to the team's threads.
void run_int8_product(const Int8Engine& engine, const Int8Product& product,
                      device::ThreadTeam& team);

}  // namespace anabatic::kernels::cpu
