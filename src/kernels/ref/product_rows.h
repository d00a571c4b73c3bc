// SPDX-License-Identifier: Apache-2.0
// Products of rows with the matrices of a weight, in double, or by the definition of int8 products
// (int8_products.h) where the weight is in their panels. One row at a time: rows do not depend on
// each other. Double products take nothing from the heap once a thread has made as wide ones.
#pragma once
#include <optional>
#include <vector>

#include "kernels/ref/access.h"
#include "kernels/ref/int8_products.h"

namespace anabatic::kernels::ref {

class ProductRows {
 public:
  // With the weight itself, which an input gradient reads, or with its transpose.
  ProductRows(const Arguments& args, const TensorView& weight, bool of_gradient);
  ProductRows(ProductRows&&) = default;
  ~ProductRows();

  // Adds row `row` of x times matrix `group`. A chain of an int8 product goes on from the f32
  // values that `sums` holds.
  void add(const TensorView& x, std::int64_t row, std::int64_t group, std::vector<double>& sums);
  // The sums of one product, and after them the bias, if there is one. Valid until the next call.
  std::vector<double>& times(const TensorView& x, std::int64_t row, std::int64_t group,
                             const TensorView* bias = nullptr);

 private:
  // Where element (column of the product, k) of the matrix is.
  std::int64_t place(std::int64_t n, std::int64_t k) const {
    return base_ + (of_gradient_ ? k * width_ + n : n * depth_ + k);
  }
  void take_matrix(std::int64_t group);

  const TensorView& weight_;
  const bool of_gradient_, is_int8_, is_packed_here_;  // the last: of f32 rows
  const int fallback_;
  CodingCounts* counts_;              // null: none
  const std::int64_t width_, depth_;  // of a result and of a row of x
  std::int64_t group_ = -1, base_ = 0;
  CodedLines tiles_;  // those of the group, for an int8 product
  std::vector<double> sums_;
};

// The attribute `fallback`, which alone makes a weight gradient an int8 product.
inline std::optional<int> fallback_of(const Arguments& args) {
  if (!args.attributes->contains("fallback")) return std::nullopt;
  return static_cast<int>(spec::get_int(*args.attributes, "fallback"));
}

// An int8 weight gradient over rows [begin, end), which lie at row_of_x and row_of_dy of the
// operands, into output `output`. place(n, k): where an element of it is.
template <class RowOfX, class RowOfDy, class Place>
void int8_weight_gradient(const Arguments& args, std::size_t output, const TensorView& x,
                          const TensorView& dy, std::int64_t begin, std::int64_t end,
                          RowOfX&& row_of_x, RowOfDy&& row_of_dy, Place&& place) {
  const auto coded = [&](const TensorView& from, auto&& row_of, int fallback) {
    std::vector<float> lines;
    for (std::int64_t line = 0; line < columns(from); ++line)
      for (std::int64_t t = begin; t < end; ++t)
        lines.push_back(static_cast<float>(load(from, row_of(t) * columns(from) + line)));
    return code_lines(lines, columns(from), end - begin, fallback);
  };
  const TensorView& dw = args.outputs[output];
  std::vector<float> sums(static_cast<std::size_t>(columns(dy) * columns(x)), 0);
  const auto for_sums = [&](auto&& body) {
    for (std::int64_t n = 0; n < columns(dy); ++n)
      for (std::int64_t k = 0; k < columns(x); ++k)
        body(sums[static_cast<std::size_t>(n * columns(x) + k)], place(n, k));
  };
  if (adds(args, output))
    for_sums([&](float& sum, std::int64_t at) { sum = static_cast<float>(load(dw, at)); });
  add_int8_product(coded(dy, row_of_dy, kWithoutFallback), coded(x, row_of_x, *fallback_of(args)),
                   sums);
  for_sums([&](float sum, std::int64_t at) { store(dw, at, sum); });
}

}  // namespace anabatic::kernels::ref
