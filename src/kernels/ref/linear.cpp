// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/ref/product_prologue.h"
#include "kernels/ref/product_rows.h"
#include "kernels/ref/rows.h"
#include "spec/product_bias.h"

namespace anabatic::kernels::ref {
namespace {

// The row of an operand that stands for row `row` of the product: itself, or that of its token.
std::int64_t source_row(const Arguments& args, std::int64_t row) {
  constexpr std::size_t kRowMap = 3;
  if (args.attributes->find("top_k") == args.attributes->end()) return row;
  return load_index(args.inputs[kRowMap], row) / spec::get_int(*args.attributes, "top_k");
}

// Rows [begin, end) of x times the transpose of the [out, in] matrix `group` of the weight, plus
// that row of the bias, if there is one.
void multiply(const Arguments& args, ProductRows& products, std::int64_t begin, std::int64_t end,
              std::int64_t group, const TensorView* bias) {
  for (std::int64_t t = begin; t < end; ++t)
    store_row(args.outputs[0], t, products.times(args.inputs[0], source_row(args, t), group, bias));
}

void multiply_transposed(const Arguments& args, ProductRows& products, std::int64_t begin,
                         std::int64_t end, std::int64_t group) {
  for (std::int64_t t = begin; t < end; ++t)
    store_row(args.outputs[0], t, products.times(args.inputs[0], t, group));
}

void outer_products(const Arguments& args, std::int64_t begin, std::int64_t end,
                    std::int64_t base) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[1];
  const std::int64_t in = columns(x), out = columns(dy), width = columns(args.outputs[0]);
  const std::int64_t step = in > 0 ? width / in : 1;
  const bool is_gathered = args.attributes->contains("gathered");
  const bool gathers_x = is_gathered && spec::get_string(*args.attributes, "gathered") == "x";
  const auto row_of_x = [&](std::int64_t t) { return gathers_x ? source_row(args, t) : t; };
  const auto row_of_dy = [&](std::int64_t t) {
    return is_gathered && !gathers_x ? source_row(args, t) : t;
  };
  const auto place = [&](std::int64_t n, std::int64_t k) { return base + n * width + k * step; };
  if (fallback_of(args))
    return int8_weight_gradient(args, 0, x, dy, begin, end, row_of_x, row_of_dy, place);
  for (std::int64_t n = 0; n < out; ++n)
    for (std::int64_t k = 0; k < in; ++k) {
      double sum = 0;
      for (std::int64_t t = begin; t < end; ++t)
        sum += load(x, row_of_x(t) * in + k) * load(dy, row_of_dy(t) * out + n);
      put(args, 0, place(n, k), sum);
    }
}

// Elements before the first one of each matrix that a weight gradient writes.
std::int64_t elements_before(const Arguments& args) {
  return spec::get_int_or(*args.attributes, "first_row", 0) * columns(args.outputs[0]) +
         spec::get_int_or(*args.attributes, "first_column", 0);
}

// Padding beyond the sides of panels is zero. What others have written of larger matrices stays.
void prepare_gradient(const Arguments& args) {
  const TensorView& dw = args.outputs[0];
  if (elements_before(args) > 0 && dw.data != args.inputs.back().data)
    std::memcpy(dw.data, args.inputs.back().data, static_cast<std::size_t>(dw.type->num_bytes()));
  if (dw.type->layout != kRowMajor && !adds(args, 0))
    std::memset(dw.data, 0, static_cast<std::size_t>(dw.type->num_bytes()));
}

// Calls body(begin, end, expert) for the rows of every expert.
template <class Body>
void for_experts(const TensorView& offsets, std::int64_t num_rows, Body&& body) {
  const std::int64_t num_experts = rows(offsets) - 1;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const std::int64_t begin = load_index(offsets, e), end = load_index(offsets, e + 1);
    ANABATIC_REQUIRE(0 <= begin && begin <= end && end <= num_rows,
                     "[grouped_linear] expected ascending offsets within {} rows, got [{}, {})",
                     num_rows, begin, end);
    body(begin, end, e);
  }
}

}  // namespace

void linear(const Arguments& call) {
  with_prologue(call, [](const Arguments& args) {
    const TensorView* bias = args.inputs.size() > 2 ? &args.inputs[2] : nullptr;
    ProductRows products(args, args.inputs[1], false);
    multiply(args, products, 0, rows(args.inputs[0]), 0, bias);
  });
}

void linear_input_gradient(const Arguments& args) {
  ProductRows products(args, args.inputs[1], true);
  multiply_transposed(args, products, 0, rows(args.inputs[0]), 0);
}

void linear_weight_gradient(const Arguments& call) {
  with_prologue(call, [](const Arguments& args) {
    prepare_gradient(args);
    outer_products(args, 0, rows(args.inputs[0]), elements_before(args));
  });
}

void grouped_linear(const Arguments& args) {
  const auto biases = spec::biases_of(args.inputs, *args.attributes);
  ProductRows products(args, args.inputs[1], false);
  for_experts(args.inputs[2], rows(args.outputs[0]),
              [&](std::int64_t begin, std::int64_t end, std::int64_t e) {
                multiply(args, products, begin, end, e, biases.empty() ? nullptr : &biases[0]);
              });
}

void grouped_linear_input_gradient(const Arguments& args) {
  ProductRows products(args, args.inputs[1], true);
  for_experts(args.inputs[2], rows(args.inputs[0]),
              [&](std::int64_t begin, std::int64_t end, std::int64_t e) {
                multiply_transposed(args, products, begin, end, e);
              });
}

void grouped_linear_weight_gradient(const Arguments& args) {
  prepare_gradient(args);
  const std::int64_t matrix = args.outputs[0].type->dim(1) * args.outputs[0].type->dim(2);
  for_experts(args.inputs[2], std::max(rows(args.inputs[0]), rows(args.inputs[1])),
              [&](std::int64_t begin, std::int64_t end, std::int64_t e) {
                if (begin == end && adds(args, 0)) return;
                outer_products(args, begin, end, e * matrix + elements_before(args));
              });
}

void linear_weight_gradient_squares(const Arguments& args) {
  linear_weight_gradient(args);
  sum_squares({.inputs = args.outputs.first(1), .outputs = args.outputs.subspan(1)});
}

void grouped_linear_weight_gradient_squares(const Arguments& args) {
  grouped_linear_weight_gradient(args);
  sum_squares({.inputs = args.outputs.first(1), .outputs = args.outputs.subspan(1)});
}

}  // namespace anabatic::kernels::ref
