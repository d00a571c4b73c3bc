// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Calls body(row, base of the row's matrix in a stack of `matrix` elements each).
template <class Body>
void for_rows(std::int64_t num_rows, const TensorView* offsets, std::int64_t matrix, Body&& body) {
  if (offsets == nullptr) {
    for (std::int64_t t = 0; t < num_rows; ++t) body(t, 0);
    return;
  }
  for (std::int64_t e = 0; e + 1 < rows(*offsets); ++e) {
    const std::int64_t begin = load_index(*offsets, e), end = load_index(*offsets, e + 1);
    ANABATIC_REQUIRE(0 <= begin && begin <= end && end <= num_rows,
                     "[linear_swiglu] expected ascending offsets within {} rows, got [{}, {})",
                     num_rows, begin, end);
    for (std::int64_t t = begin; t < end; ++t) body(t, e * matrix);
  }
}

bool is_grouped(const TensorView& weight) { return weight.type->ndim() == 3; }

// gate and up are rounded to the dtype of x before they are used, as where they stand.
void forward(const Arguments& args) {
  const TensorView &x = args.inputs[0], &gate_weight = args.inputs[1], &h = args.outputs[0];
  const std::int64_t in = columns(x), out = columns(h);
  const TensorView* offsets = is_grouped(gate_weight) ? &args.inputs[3] : nullptr;
  const TensorView* row_map = args.inputs.size() > 4 ? &args.inputs[4] : nullptr;
  const TensorView* weights = args.inputs.size() > 5 ? &args.inputs[5] : nullptr;
  const std::int64_t top_k = spec::get_int_or(*args.attributes, "top_k", 0);
  const std::int64_t block = spec::get_int_or(*args.attributes, "block", 0);
  auto* products = reinterpret_cast<double*>(args.workspace);  // of one row, where they get codes
  for_rows(rows(h), offsets, in * out, [&](std::int64_t t, std::int64_t base) {
    const std::int64_t row = top_k > 0 ? load_index(*row_map, t) / top_k : t;
    const double factor = weights != nullptr ? load(*weights, load_index(*row_map, t)) : 1.0;
    for (std::int64_t n = 0; n < out; ++n) {
      double gate = 0, up = 0;
      for (std::int64_t k = 0; k < in; ++k) {
        gate += load(x, row * in + k) * load(gate_weight, base + n * in + k);
        up += load(x, row * in + k) * load(args.inputs[2], base + n * in + k);
      }
      gate = round_to(x.type->dtype, gate);
      up = round_to(x.type->dtype, up);
      store(h, t * out + n, factor * (gate * sigmoid(gate) * up));
      if (block > 0) {
        products[n] = gate;
        products[out + n] = up;
      } else if (args.outputs.size() > 1) {
        store(args.outputs[1], t * out + n, gate);
        store(args.outputs[2], t * out + n, up);
      }
    }
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
      if (block > 0)
        quantize_row(products + static_cast<std::int64_t>(i) * out, out, block, t,
                     args.outputs[1 + 2 * i], args.outputs[2 + 2 * i]);
  });
}

// Gate or up of a gradient: a matrix, or its codes and scales.
class Operand {
 public:
  Operand(const Arguments& args, std::size_t input)
      : values_(args.inputs[input]),
        dtype_(args.inputs[0].type->dtype),
        block_(spec::get_int_or(*args.attributes, "block", 0)) {
    if (block_ > 0) scales_ = &args.inputs[input + 1];
  }
  double at(std::int64_t row, std::int64_t column) const {
    const double value = load(values_, row * columns(values_) + column);
    if (block_ == 0) return value;
    return round_to(dtype_, value * load(*scales_, row * columns(*scales_) + column / block_));
  }

 private:
  const TensorView& values_;
  const TensorView* scales_ = nullptr;
  DType dtype_;  // of the matrix
  std::int64_t block_;
};

// The gradient of h is rounded to the dtype of dy first. With weights h is weight · swiglu, and the
// rows of dy belong to tokens.
void backward(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &weight = args.inputs[1];
  const bool grouped = is_grouped(weight);
  const std::size_t first = grouped ? 3 : 2,
                    second = first + (args.attributes->contains("block") ? 2 : 1),
                    end = 2 * second - first;
  const TensorView& gates = args.inputs[first];
  const Operand gate_of(args, first), up_of(args, second);
  const TensorView *row_map = nullptr, *weights = nullptr;
  if (args.inputs.size() > end) {
    row_map = &args.inputs[end];
    weights = &args.inputs[end + 1];
  }
  const TensorView* h = args.attributes->contains("activation") ? &args.outputs.back() : nullptr;
  const std::int64_t in = columns(dy), out = columns(gates);
  for_rows(rows(gates), grouped ? &args.inputs[2] : nullptr, in * out,
           [&](std::int64_t t, std::int64_t base) {
             const std::int64_t slot = weights != nullptr ? load_index(*row_map, t) : t;
             const std::int64_t row = weights != nullptr ? slot / columns(*weights) : t;
             const double factor = weights != nullptr ? load(*weights, slot) : 1.0;
             double dweight = 0;
             for (std::int64_t f = 0; f < out; ++f) {
               double dh = 0;
               for (std::int64_t n = 0; n < in; ++n)
                 dh += load(dy, row * in + n) * load(weight, base + n * out + f);
               dh = round_to(dy.type->dtype, dh);
               const double gate = gate_of.at(t, f), up = up_of.at(t, f);
               const double s = sigmoid(gate);
               dweight += dh * gate * s * up;
               store(args.outputs[0], t * out + f, factor * dh * up * s * (1.0 + gate * (1.0 - s)));
               store(args.outputs[1], t * out + f, factor * dh * gate * s);
               if (h != nullptr) store(*h, t * out + f, factor * (gate * s * up));
             }
             if (weights != nullptr) store(args.outputs[2], slot, dweight);
           });
}

}  // namespace

std::int64_t swiglu_with_codes_workspace_bytes(const spec::Problem& problem) {
  return 2 * problem.outputs[0].dim(1) * std::int64_t{sizeof(double)};
}

void grouped_linear_swiglu(const Arguments& args) { forward(args); }
void grouped_linear_swiglu_gradient(const Arguments& args) { backward(args); }
void grouped_linear_swiglu_gradient_with_weights(const Arguments& args) { backward(args); }
void grouped_linear_swiglu_with_codes(const Arguments& args) { forward(args); }
void grouped_linear_swiglu_with_products(const Arguments& args) { forward(args); }
void linear_swiglu(const Arguments& args) { forward(args); }
void linear_swiglu_gradient(const Arguments& args) { backward(args); }
void linear_swiglu_with_codes(const Arguments& args) { forward(args); }
void linear_swiglu_with_products(const Arguments& args) { forward(args); }

}  // namespace anabatic::kernels::ref
