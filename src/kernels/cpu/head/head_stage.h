// SPDX-License-Identifier: Apache-2.0
// Processing of rows between the products of a head with its loss, one variant for each instruction
// set.
#pragma once
#include <cstdint>

#include "kernels/cpu/int8/lines.h"
#include "tensor/dtype.h"

namespace anabatic::kernels::cpu {

// Copies of rows of x in the dtype that the engine multiplies, with a stride that spreads over
// cache sets.
struct HeadCopies {
  std::byte* data;
  DType dtype;
  std::int64_t stride;  // elements
};

// A step of logits [rows, columns] for the products after it.
struct HeadLogits {
  float* logits;  // e^(logit - shift) afterwards, without `rounded`
  std::int64_t stride, rows, columns;
  const float* shift;  // a row
  double* sums;        // a row; the step's exponentials are added
  BFloat16* rounded;   // null, or where the exponentials go, [rows, rounded_stride], whose rows
                       // have room for columns rounded up to 32; `turned` is bf16 too
  std::int64_t rounded_stride;
  const Int8Lines* coded;  // null, or with `rounded` their u8 values too, in rows
  std::byte* turned;  // null, or the exponentials with column j at j · turned_stride: room for
                      // rows rounded up to 16
  DType turned_dtype;
  std::int64_t turned_stride;
  // Data to prefetch meanwhile, because it is read soon.
  const std::byte* ahead;
  std::int64_t ahead_bytes;
};

// One row when its sum is known:
// dx (+)= factor · (sums + more_sums) - label_factor · weight row of the label.
struct HeadGradient {
  std::byte* dx;
  DType dx_dtype;
  bool accumulate;
  const float* sums;       // Σ e · weight row over the other classes
  const float* more_sums;  // null, or of the other part of them
  float factor, label_factor;
};

struct HeadStage {
  // Copies row x[width] of `dtype` to row `to` of `copies`; returns its product with weight[width].
  float (*copy_row)(const std::byte* x, const std::byte* weight, DType dtype, std::int64_t width,
                    const HeadCopies& copies, std::int64_t to);
  void (*exponentials)(const HeadLogits& step);
  // largest[row] = max(largest[row], logits of the row).
  void (*largest)(const HeadLogits& step, float* largest);
  void (*input_gradient)(const HeadGradient& row, const std::byte* label_weight, DType dtype,
                         std::int64_t width);
  // Up to 16 rows of `width` elements, `stride` apart, to the panel whose columns they are. Here
  // and in pack_depth, panels of f16 rows hold f32.
  void (*pack_columns)(std::byte* panel, const std::byte* rows, DType dtype, std::int64_t stride,
                       std::int64_t count, std::int64_t width);
  // Rows [begin, end) of `width` elements, which `rows` begins with, to the panels whose depth they
  // are; `begin` is even, `end` too unless it is the last row.
  void (*pack_depth)(std::byte* panels, std::int64_t panel_elements, const std::byte* rows,
                     DType dtype, std::int64_t stride, std::int64_t begin, std::int64_t end,
                     std::int64_t width);
  // `count` lines of `depth` exponentials, `stride` apart, times factors[k], as u8 values in rows.
  void (*code_probabilities)(const BFloat16* exponentials, std::int64_t stride,
                             const float* factors, std::int64_t count, std::int64_t depth,
                             const Int8Lines& to);
  // c[width] -= factor · row.
  void (*subtract_row)(float* c, const BFloat16* row, float factor, std::int64_t width);
  // Row `at` of `copies` times `factor`, rounded once.
  void (*scale_row)(const HeadCopies& copies, std::int64_t at, std::int64_t width, float factor);
};

namespace avx512 {
extern const HeadStage kHeadStage;
}
namespace avx2 {
extern const HeadStage kHeadStage;
}
namespace portable {
extern const HeadStage kHeadStage;
}

}  // namespace anabatic::kernels::cpu
