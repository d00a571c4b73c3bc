// SPDX-License-Identifier: Apache-2.0
// Turns values into int8 values of int8 products, one variant an instruction set. All give equal
// bits: those of op `quantize`, whose formula each block of a line has (codes_math.h).
#pragma once
#include "kernels/cpu/int8/lines.h"

namespace anabatic::kernels::cpu {

// A row-major matrix in f32 or bf16, or the norm of its rows, as the kernels of norms store it.
struct Int8Source {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;  // elements from row to row
  RowIndex index{};         // of rows, not of weights
  LineNorm norm{};          // likewise
};

struct Int8Coding {
  // Rows [first, last) of x as rows. With second values where `to` has room for them. Adds to
  // `counts`, unless it is null, as other threads may.
  void (*rows)(const Int8Source& x, std::int64_t first, std::int64_t last, int fallback,
               const Int8Lines& to, CodingCounts* counts);
  // Panels [first, last) of sixteen columns of x, whose depth is the rows. Compensations and second
  // int8 values where `to` has room for them.
  void (*columns)(const Int8Source& x, std::int64_t first, std::int64_t last, int fallback,
                  const Int8Lines& to);
  // Tiles of 128 x 128 of w [N, K] with a scale each, in rows [first, last) of tiles. One set of
  // int8 values goes to two sets of panels: lines are rows in `forward`, columns in `transposed`.
  // Either may be null. Their scales are those of the tiles, [rows of tiles][columns of tiles].
  void (*weights)(const Int8Source& w, std::int64_t first, std::int64_t last,
                  const Int8Lines* forward, const Int8Lines* transposed);
  // The one tile of w that begins at [row, column], likewise. `streams`: past the caches where it
  // can, which stream_end ends.
  void (*tile)(const Int8Source& w, std::int64_t row, std::int64_t column, bool streams,
               const Int8Lines* forward, const Int8Lines* transposed);
};

namespace avx512 {
const Int8Coding& int8_coding();
}
namespace avx2 {
const Int8Coding& int8_coding();
}
namespace portable {
const Int8Coding& int8_coding();
}

}  // namespace anabatic::kernels::cpu
