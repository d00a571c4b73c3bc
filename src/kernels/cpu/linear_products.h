// SPDX-License-Identifier: Apache-2.0
// What the sources of linear ops share: the three products of a weight as Gemms.
#pragma once
#include <algorithm>
#include <optional>

#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/linear_rows.h"
#include "spec/product.h"
#include "spec/product_prologue.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {

inline Matrix matrix(const std::byte* data, DType dtype, std::int64_t row_stride,
                     std::int64_t column_stride) {
  return {.data = data, .dtype = dtype, .row_stride = row_stride, .column_stride = column_stride};
}

// Shapes by the roles of the three ops: x [rows, in], weight [groups, out, in], y [rows, out].
struct Product {
  std::int64_t groups, rows, in, out;
  DType x, weight, y;
  bool is_packed;                // the weight
  std::int64_t scale_columns;    // of a quantised weight; else 0
  std::int64_t column_step = 1;  // of a weight gradient: from column to column of its result
  int fallback = kNoFallback;    // of x in an int8 product
};

// Whether a product of such operands is to be computed in int8: of a weight in int8 panels, or a
// weight gradient that says when blocks of x fall back.
inline bool is_int8_product(const spec::Problem& problem) {
  if (spec::find_product(text(problem.op))->role == spec::ProductRole::kWeightGradient)
    return problem.attributes->contains("fallback");
  return std::any_of(problem.inputs.begin(), problem.inputs.end(), is_int8_panels);
}
// When blocks of x fall back. Input gradients do not say: blocks of dy never do.
inline int fallback_of(const spec::Attributes& attributes) {
  return static_cast<int>(spec::get_int_or(attributes, "fallback", kNoFallback));
}
inline Matrix with_fallback(Matrix matrix, int fallback) {
  matrix.fallback = fallback;
  return matrix;
}

// A product that counts what it quantises by rows.
inline Gemm counted(Gemm gemm, CodingCounts* counts) {
  gemm.counts = counts;
  return gemm;
}

inline Matrix right_operand(const Product& p, std::int64_t row_stride, std::int64_t column_stride) {
  Matrix b = matrix(nullptr, p.weight, row_stride, column_stride);
  b.is_packed = p.is_packed;
  b.scale_columns = p.scale_columns;
  return b;
}

inline Gemm forward_shape(const Product& p) {
  return {.rows = p.rows,
          .columns = p.out,
          .depth = p.in,
          .a = with_fallback(matrix(nullptr, p.x, p.in, 1), p.fallback),
          .b = right_operand(p, 1, p.in),
          .c_dtype = p.y,
          .c_stride = p.out};
}

inline Gemm input_gradient_shape(const Product& p) {
  return {.rows = p.rows,
          .columns = p.in,
          .depth = p.out,
          .a = matrix(nullptr, p.y, p.out, 1),
          .b = right_operand(p, p.in, 1),
          .c_dtype = p.x,
          .c_stride = p.in};
}

// For a packed gradient this is the transpose: a row of a panel is a column of x.
inline Gemm weight_gradient_shape(const Product& p) {
  if (p.is_packed)
    return {.rows = p.in,
            .columns = p.out,
            .depth = p.rows,
            .a = with_fallback(matrix(nullptr, p.x, 1, p.in), p.fallback),
            .b = matrix(nullptr, p.y, p.out, 1),
            .c_dtype = p.weight,
            .c_stride = kPanelColumns,
            .c_panel_stride = p.in * kPanelColumns,
            .c_in_panels = true};
  return {.rows = p.out,
          .columns = p.in,
          .depth = p.rows,
          .a = matrix(nullptr, p.y, 1, p.out),
          .b = with_fallback(matrix(nullptr, p.x, p.in, 1), p.fallback),
          .c_dtype = p.weight,
          .c_stride = p.in * p.column_step,
          .c_panel_stride = kPanelColumns * p.column_step,
          .c_column_step = p.column_step};
}

// Columns that share a scale; 0 where it is not quantised.
inline std::int64_t scale_columns_of(const TensorType& type) {
  return type.is_quantized() ? type.blocks->columns : 0;
}

inline bool is_grouped(const TensorType& weight) { return weight.ndim() == 3; }

// `weight` may be the output. A gathered x or y has fewer rows than the other.
inline Product product(const TensorType& x, const TensorType& weight, const TensorType& y) {
  return {.groups = is_grouped(weight) ? weight.dim(0) : 1,
          .rows = std::max(x.dim(0), y.dim(0)),
          .in = weight.dim(-1),
          .out = weight.dim(-2),
          .x = x.dtype,
          .weight = weight.value_dtype(),
          .y = y.dtype,
          .is_packed = is_panels(weight.layout),
          .scale_columns = scale_columns_of(weight)};
}

// Elements from one matrix of a stack to the next.
inline std::int64_t matrix_elements(const TensorType& weight) {
  return is_panels(weight.layout) ? panel_shape(weight).num_elements()
                                  : weight.dim(-1) * weight.dim(-2);
}

// Matrix `group` of a weight as the right operand, which has its strides and format.
inline void set_matrix(Matrix& b, const TensorView& weight, std::int64_t group) {
  const TensorType& type = *weight.type;
  const std::int64_t first = group * matrix_elements(type);
  if (!type.is_quantized()) {
    b.data = weight.data + first * size_bytes(type.dtype);
    return;
  }
  if (is_int8_panels(type)) {
    const PanelShape panels = panel_shape(type);
    const std::int64_t columns = scale_columns(type);
    const bool is_transposed = type.layout == panels_layout(true);
    b.data = weight.data + first;
    b.scales = weight.scales<const std::byte>() +
               group * ceil_div(type.dim(-2), kInt8Tile) * columns * size_bytes(type.blocks->scale);
    b.scale_stride = is_transposed ? 1 : columns;
    b.scale_step = is_transposed ? columns : 1;
    b.compensations = weight.compensations() + group * panels.num_panels() *
                                                   ceil_div(panels.depth, kInt8Tile) *
                                                   kPanelColumns;
    return;
  }
  b.map = type.blocks->map;
  b.data = weight.data + first / elements_per_unit(b.map);
  b.scale_stride = scale_columns(type);
  b.scales = weight.scales<const std::byte>() +
             group * type.dim(-2) * b.scale_stride * size_bytes(type.blocks->scale);
}

// The product of a weight gradient, whose result may be rows or columns of larger matrices.
inline Product weight_gradient_product(const TensorType& x, const TensorType& weight,
                                       const TensorType& y) {
  Product p = product(x, weight, y);
  p.out = y.dim(-1);
  p.in = x.dim(-1);
  if (p.in > 0) p.column_step = weight.dim(-1) / p.in;
  return p;
}

struct Rows {
  std::int64_t begin, end;
};
inline Rows rows_of(const std::int32_t* offsets, std::int64_t group, std::int64_t all) {
  if (offsets == nullptr) return {0, all};
  return {offsets[group], offsets[group + 1]};
}

// Lets `matrix` begin at `line`. Its lines are gathered by `index`, or `stride` elements apart.
inline void begin_at(Matrix& matrix, const std::byte* data, const RowIndex& index,
                     std::int64_t line, std::int64_t stride) {
  matrix.data = data;
  if (index.data == nullptr) {
    matrix.data += line * stride * size_bytes(matrix.dtype);
    if (matrix.norm.statistics != nullptr)
      matrix.norm.statistics += line * matrix.norm.num_statistics;
    matrix.dropout.first_row += line;
    return;
  }
  matrix.index = index;
  matrix.index.data += line;
}

// The norm that a product applies to x.
inline LineNorm norm_of_x(const Arguments& arguments) {
  const spec::Norm norm = spec::norm_of(*arguments.attributes);
  if (norm == spec::Norm::kNone) return {};
  const auto inputs = spec::norm_inputs(arguments.inputs, *arguments.attributes);
  return {.statistics = inputs[0].as<const float>(),
          .num_statistics = spec::num_statistics(norm),
          .weight = inputs[1].as<const float>(),
          .bias = norm == spec::Norm::kLayer ? inputs[2].as<const float>() : nullptr};
}
// The norm and the dropout of x in a call. What they are set on reads them, so this lives as long.
class Prologue {
 public:
  Prologue(const GemmEngine& engine, const Arguments& arguments);
  Prologue(const Prologue&) = delete;
  Prologue& operator=(const Prologue&) = delete;

  void set(Matrix& x) const {
    x.norm = norm_;
    if (draws_) x.dropout = {.draws = &*draws_, .drop = drop_};
  }

 private:
  LineNorm norm_;
  std::optional<Draws> draws_;
  decltype(LineDropout::drop) drop_;
};
// The call without the inputs of its prologue.
inline Arguments without_prologue(const Arguments& arguments) {
  Arguments result = arguments;
  result.inputs = spec::without_prologue(arguments.inputs, *arguments.attributes);
  return result;
}

// Norms and dropout of x are of f32 and bf16.
Support supports_prologue(const spec::Problem& problem);
// Row-major operands, or packed weights; floats are f32, bf16 or f16.
Support supports_linear_types(const spec::Problem& problem);
// Whether the engine was built, the device can run it, and the product is one of its kind: in int8
// or not.
Support supports_engine(const GemmEngine* engine, const spec::Problem& problem);

}  // namespace anabatic::kernels::cpu
