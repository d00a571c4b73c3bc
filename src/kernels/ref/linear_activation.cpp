// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/product_prologue.h"
#include "kernels/ref/product_rows.h"
#include "kernels/ref/rows.h"
#include "spec/product_bias.h"

namespace anabatic::kernels::ref {
namespace {

// Calls body(row, the group whose matrix it is multiplied by).
template <class Body>
void for_rows(std::int64_t num_rows, const TensorView* offsets, Body&& body) {
  if (offsets == nullptr) {
    for (std::int64_t t = 0; t < num_rows; ++t) body(t, 0);
    return;
  }
  for (std::int64_t e = 0; e + 1 < rows(*offsets); ++e) {
    const std::int64_t begin = load_index(*offsets, e), end = load_index(*offsets, e + 1);
    ANABATIC_REQUIRE(0 <= begin && begin <= end && end <= num_rows,
                     "[linear_activation] expected ascending offsets within {} rows, got [{}, {})",
                     num_rows, begin, end);
    for (std::int64_t t = begin; t < end; ++t) body(t, e);
  }
}

bool is_grouped(const TensorView& weight) { return weight.type->ndim() == 3; }

const TensorView* input_or_null(std::span<const TensorView> inputs, int i) {
  const auto at = static_cast<std::size_t>(i);
  return at < inputs.size() ? &inputs[at] : nullptr;
}

// The products are rounded to the dtype of x before they are used, as where they are stored.
void forward(const Arguments& args) {
  const spec::Activation activation = spec::activation_of(*args.attributes);
  const spec::ActivationInputs at{num_operands(activation)};
  const auto count = static_cast<std::size_t>(at.num_weights);
  const TensorView &x = args.inputs[0], &h = args.outputs[0];
  const std::int64_t out = columns(h);
  const auto inputs = spec::without_biases(args.inputs, *args.attributes);
  const auto biases = spec::biases_of(args.inputs, *args.attributes);
  const TensorView* offsets =
      is_grouped(args.inputs[1]) ? input_or_null(inputs, at.offsets()) : nullptr;
  const TensorView* row_map = input_or_null(inputs, at.row_map());
  const TensorView* weights = input_or_null(inputs, at.row_weights());
  const std::int64_t top_k = spec::get_int_or(*args.attributes, "top_k", 0);
  const bool keeps_int8 = args.outputs.size() > 1 && args.outputs[1].type->is_quantized();
  std::optional<ProductRows> of_weights[2];
  for (std::size_t i = 0; i < count; ++i) of_weights[i].emplace(args, args.inputs[1 + i], false);
  for_rows(rows(h), offsets, [&](std::int64_t t, std::int64_t group) {
    const std::int64_t row = top_k > 0 ? load_index(*row_map, t) / top_k : t;
    const double factor = weights != nullptr ? load(*weights, load_index(*row_map, t)) : 1.0;
    const std::vector<double>* products[2] = {};
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<double>& product =
          of_weights[i]->times(x, row, group, biases.empty() ? nullptr : &biases[i]);
      products[i] = &product;
      for (double& value : product) value = round_to(x.type->dtype, value);
      if (keeps_int8)
        quantize_row(product.data(), t, args.outputs[1 + i]);
      else if (args.outputs.size() > 1)
        store_row(args.outputs[1 + i], t, product);
    }
    for (std::size_t n = 0; n < static_cast<std::size_t>(out); ++n) {
      const double up = count > 1 ? (*products[1])[n] : 1;
      store(h, t * out + static_cast<std::int64_t>(n),
            factor * evaluate(activation, (*products[0])[n], up).value);
    }
  });
}

// The gradient of h is rounded to the dtype of dy first. With weights h is weight · activation, and
// the rows of dy belong to tokens.
void backward(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &weight = args.inputs[1];
  const spec::Activation activation = spec::activation_of(*args.attributes);
  const spec::ActivationGradientInputs at =
      spec::activation_gradient_inputs(*args.attributes, is_grouped(weight));
  const TensorView& gate = args.inputs[static_cast<std::size_t>(at.operand(0))];
  const bool has_up = at.num_operands > 1;
  const TensorView& up = args.inputs[static_cast<std::size_t>(at.operand(has_up ? 1 : 0))];
  const TensorView *row_map = input_or_null(args.inputs, at.row_map()),
                   *weights = input_or_null(args.inputs, at.row_weights());
  const TensorView* h =
      args.attributes->contains("with_activation") ? &args.outputs.back() : nullptr;
  const std::int64_t out = columns(gate);
  ProductRows products(args, weight, true);
  for_rows(rows(gate), at.is_grouped ? &args.inputs[2] : nullptr,
           [&](std::int64_t t, std::int64_t group) {
             const std::int64_t slot = weights != nullptr ? load_index(*row_map, t) : t;
             const std::int64_t row = weights != nullptr ? slot / columns(*weights) : t;
             const double factor = weights != nullptr ? load(*weights, slot) : 1.0;
             double dweight = 0;
             const std::vector<double>& dhs = products.times(dy, row, group);
             for (std::int64_t f = 0; f < out; ++f) {
               const double dh = round_to(dy.type->dtype, dhs[static_cast<std::size_t>(f)]);
               const DType dtype = dy.type->dtype;
               const spec::ActivationPoint a =
                   evaluate(activation, load_as(dtype, gate, t * out + f),
                            has_up ? load_as(dtype, up, t * out + f) : 1);
               dweight += dh * a.value;
               store(args.outputs[0], t * out + f, factor * dh * a.by_gate);
               if (has_up) store(args.outputs[1], t * out + f, factor * dh * a.by_up);
               if (h != nullptr) store(*h, t * out + f, factor * a.value);
             }
             if (weights != nullptr)
               store(args.outputs[static_cast<std::size_t>(at.num_operands)], slot, dweight);
           });
}

}  // namespace

void grouped_linear_activation(const Arguments& args) { forward(args); }
void grouped_linear_activation_gradient(const Arguments& args) { backward(args); }
void grouped_linear_activation_gradient_with_weights(const Arguments& args) { backward(args); }
void grouped_linear_activation_with_codes(const Arguments& args) { forward(args); }
void grouped_linear_activation_with_products(const Arguments& args) { forward(args); }
void linear_activation(const Arguments& args) { with_prologue(args, forward); }
void linear_activation_gradient(const Arguments& args) { backward(args); }
void linear_activation_with_codes(const Arguments& args) { with_prologue(args, forward); }
void linear_activation_with_products(const Arguments& args) { with_prologue(args, forward); }

}  // namespace anabatic::kernels::ref
