// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/product_prologue.h"
#include "kernels/ref/product_rows.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

// y_p = x · weight_p' for every p.
void multiply(const Arguments& args, std::int64_t begin, std::int64_t end, std::int64_t group) {
  for (std::size_t p = 0; p < args.outputs.size(); ++p) {
    ProductRows products(args, args.inputs[1 + p], false);
    for (std::int64_t t = begin; t < end; ++t)
      store_row(args.outputs[p], t, products.times(args.inputs[0], t, group));
  }
}

// dx = sum over p of dy_p · weight_p, in this order.
void multiply_transposed(const Arguments& args, std::int64_t begin, std::int64_t end,
                         std::int64_t group) {
  thread_local std::vector<ProductRows> products;  // keeps its room
  for (std::size_t p = 0; p < args.inputs.size() / 2; ++p)
    products.emplace_back(args, args.inputs[2 * p + 1], true);
  for (std::int64_t t = begin; t < end; ++t) {
    std::vector<double>& sums = products[0].times(args.inputs[0], t, group);
    for (std::size_t p = 1; p < products.size(); ++p)
      products[p].add(args.inputs[2 * p], t, group, sums);
    store_row(args.outputs[0], t, sums);
  }
  products.clear();
}

// dw_p = dy_p' · x for every p.
void outer_products(const Arguments& args, std::int64_t begin, std::int64_t end,
                    std::int64_t group) {
  const TensorView& x = args.inputs[0];
  for (std::size_t p = 0; p < args.outputs.size(); ++p) {
    if (begin == end && adds(args, p)) continue;
    const TensorView& dy = args.inputs[1 + p];
    const std::int64_t in = columns(x), out = columns(dy), base = group * out * in;
    if (fallback_of(args)) {
      const auto row_of = [](std::int64_t t) { return t; };
      int8_weight_gradient(args, p, x, dy, begin, end, row_of, row_of,
                           [&](std::int64_t n, std::int64_t k) { return base + n * in + k; });
      continue;
    }
    for (std::int64_t n = 0; n < out; ++n)
      for (std::int64_t k = 0; k < in; ++k) {
        double sum = 0;
        for (std::int64_t t = begin; t < end; ++t)
          sum += load(x, t * in + k) * load(dy, t * out + n);
        put(args, p, base + n * in + k, sum);
      }
  }
}

using Body = void (*)(const Arguments&, std::int64_t begin, std::int64_t end, std::int64_t group);

void all_rows(const Arguments& call, Body body) {
  with_prologue(call, [body](const Arguments& args) { body(args, 0, rows(args.inputs[0]), 0); });
}

// The offsets are the last input.
void rows_by_expert(const Arguments& args, Body body) {
  const TensorView& offsets = args.inputs.back();
  for (std::int64_t e = 0; e + 1 < rows(offsets); ++e) {
    const std::int64_t begin = load_index(offsets, e), end = load_index(offsets, e + 1);
    ANABATIC_REQUIRE(
        0 <= begin && begin <= end && end <= rows(args.inputs[0]),
        "[grouped_linear_many] expected ascending offsets within {} rows, got [{}, {})",
        rows(args.inputs[0]), begin, end);
    body(args, begin, end, e);
  }
}

}  // namespace

void linear_many(const Arguments& args) { all_rows(args, multiply); }
void linear_many_input_gradient(const Arguments& args) { all_rows(args, multiply_transposed); }
void linear_many_weight_gradient(const Arguments& args) { all_rows(args, outer_products); }

void grouped_linear_many(const Arguments& args) { rows_by_expert(args, multiply); }
void grouped_linear_many_input_gradient(const Arguments& args) {
  rows_by_expert(args, multiply_transposed);
}
void grouped_linear_many_weight_gradient(const Arguments& args) {
  rows_by_expert(args, outer_products);
}

}  // namespace anabatic::kernels::ref
