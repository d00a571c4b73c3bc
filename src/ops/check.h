// SPDX-License-Identifier: Apache-2.0
// Checks of inputs and attributes for an op's infer function, with one wording of errors.
#pragma once
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::ops {

// An input and its name in messages.
struct Operand {
  std::string_view name;
  const TensorType* type;

  std::int64_t dim(std::int64_t axis) const;
  std::int64_t size(std::int64_t axis) const { return type->dim(axis); }
  DType dtype() const { return type->dtype; }
};

inline constexpr int kAnyNdim = -1;

// Every member throws InvalidArgument "[op] expected ..., got ..." when its check fails. Arity is
// checked by the builder and the verifier, before infer.
class Check {
 public:
  // Refuses attributes that are neither required nor optional; the nearest known key is the hint.
  Check(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
        std::initializer_list<std::string_view> required = {},
        std::initializer_list<std::string_view> optional = {});
  Check(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
        std::span<const std::string_view> required, std::span<const std::string_view> optional);

  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  const spec::Attributes& attributes() const { return attributes_; }

  // Input i as f32, bf16, f16 or f64.
  Operand floating(int i, std::string_view name, int ndim = kAnyNdim) const;
  // Input i as f32; f64 stands for it in finite differences.
  Operand wide(int i, std::string_view name, int ndim = kAnyNdim) const;
  Operand i32(int i, std::string_view name, int ndim) const;
  // Input i as f32, bf16, f16, f64 or i32: for ops that move elements.
  Operand floating_or_i32(int i, std::string_view name, int ndim = kAnyNdim) const;
  // Input i is quantised; `in_int8`: a row-major matrix, or a stack, in int8, with a scale in bf16
  // for each block of a row.
  bool is_quantized(int i) const {
    return i < num_inputs() && inputs_[static_cast<std::size_t>(i)].is_quantized();
  }
  Operand in_int8(int i, std::string_view name, int ndim = 2) const;
  // Input i as the weight of a product of `rows`, whose dtype its values have, or bf16 with rows of
  // gradients in f16: in int8 or MXFP4 by rows, and in the panels of an int8 product, too.
  Operand weight(int i, std::string_view name, int ndim, const Operand& rows) const;
  Operand f64(int i, std::string_view name, int ndim) const;

  void same_dtype(const Operand& a, const Operand& b) const;
  void same_shape(const Operand& a, const Operand& b) const;
  void same_type(const Operand& a, const Operand& b) const;
  // Dimension `axis_a` of a equals dimension `axis_b` of b.
  void same_dim(const Operand& a, std::int64_t axis_a, const Operand& b, std::int64_t axis_b) const;
  void size(const Operand& a, std::int64_t axis, std::int64_t expected) const;
  // Dimension `axis` of a is a multiple of `divisor`; `reason` names the divisor.
  void multiple(const Operand& a, std::int64_t axis, std::int64_t divisor,
                std::string_view reason) const;

  // The gradient dy of a value like x has its shape and dtype, or f16 next to an x in bf16.
  void gradient_of(const Operand& dy, const Operand& x) const;
  // Its dtype alone.
  void gradient_dtype_of(const Operand& dy, const Operand& x) const;

  void row_major(const Operand& a) const;
  // Row-major, or packed for a product with its right operand: its transpose, or itself.
  void right_operand(const Operand& weight, bool transposed) const;
  // For an input gradient, which reads the weight itself. With `slices` the call packs it, some
  // matrices at a time, and the weight is packed as the forward reads it. With `packed_format` too
  // it is an int8 product, and the weight f32 in rows.
  void right_operand_of_gradient(const Operand& weight) const;

  // The attribute `fallback` of a forward product: it is there exactly where the weight is in
  // panels of an int8 product.
  void fallback(const Operand& weight) const;
  // That of a weight gradient, which it alone makes an int8 product: of x in bf16.
  void fallback_of_gradient(const Operand& x) const;

  // Rows of a product whose operand x is gathered where input `row_map` is present, i32[R]: row p
  // is row row_map[p] / top_k of x [R / top_k, ...]. Without it the rows of x, and no `top_k`.
  std::int64_t gathered_rows(const Operand& x, int row_map) const;

  std::int64_t positive_int(std::string_view key) const;
  std::int64_t non_negative_int(std::string_view key) const;
  double number(std::string_view key) const;
  double non_negative(std::string_view key) const;
  // In [0, 1).
  double fraction(std::string_view key) const;
  // The optional attribute of calls that may be cut: 1 without it.
  std::int64_t slices() const { return has("slices") ? positive_int("slices") : 1; }
  bool flag(std::string_view key) const;
  const std::string& string(std::string_view key) const;
  // f32, bf16, f16 or f64.
  DType dtype(std::string_view key) const;
  DType dtype_or(std::string_view key, DType fallback) const;
  bool has(std::string_view key) const { return attributes_.find(key) != attributes_.end(); }

  [[noreturn]] void fail(const std::string& message) const;

 private:
  Operand input(int i, std::string_view name, int ndim) const;
  Operand f32_rows(int i, std::string_view name, int ndim, const Operand& rows) const;
  void check_fallback() const;

  std::string_view op_;
  ir::Types inputs_;
  const spec::Attributes& attributes_;
};

// f64 for f64, f32 for the rest: the dtype that the op table calls f32 for an input of this dtype.
DType wide_dtype(DType dtype);

TensorType with_dtype(TensorType type, DType dtype);
// `type` as the optional attribute "layout" asks for it: row-major, or "panels".
TensorType laid_out(const Check& check, TensorType type);
// Whether a weight gradient is written into matrices of which others have written a part, its last
// input `into`: `first_row` or `first_column` is not 0.
bool is_written_into(const spec::Attributes& attributes);
// The type of a weight gradient by the optional attributes of its plain forms: `output_dtype`;
// `first_row` with `of_rows`, which makes it rows of larger matrices; `first_column` with
// `column_step`, which makes it every so many of their columns. `num_others` inputs come before
// `into`.
TensorType placed(const Check& check, TensorType type, int num_others);
// Row-major.
TensorType typed(DType dtype, std::initializer_list<std::int64_t> dims);

}  // namespace anabatic::ops
