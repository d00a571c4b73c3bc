// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/access.h"
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
  const std::int64_t in = columns(x), out = columns(h);
  const auto inputs = spec::without_biases(args.inputs, *args.attributes);
  const auto biases = spec::biases_of(args.inputs, *args.attributes);
  const TensorView* offsets =
      is_grouped(args.inputs[1]) ? input_or_null(inputs, at.offsets()) : nullptr;
  const TensorView* row_map = input_or_null(inputs, at.row_map());
  const TensorView* weights = input_or_null(inputs, at.row_weights());
  const std::int64_t top_k = spec::get_int_or(*args.attributes, "top_k", 0);
  const bool keeps_int8 = args.outputs.size() > 1 && args.outputs[1].type->is_quantized();
  auto* kept = reinterpret_cast<double*>(args.workspace);  // of one row, where they are quantised
  for_rows(rows(h), offsets, [&](std::int64_t t, std::int64_t group) {
    const std::int64_t row = top_k > 0 ? load_index(*row_map, t) / top_k : t;
    const double factor = weights != nullptr ? load(*weights, load_index(*row_map, t)) : 1.0;
    for (std::int64_t n = 0; n < out; ++n) {
      double products[2] = {0, 1};
      for (std::size_t i = 0; i < count; ++i) {
        double sum = biases.empty() ? 0 : load(biases[i], group * out + n);
        for (std::int64_t k = 0; k < in; ++k)
          sum +=
              load(x, row * in + k) * load_weight(args.inputs[1 + i], (group * out + n) * in + k);
        products[i] = round_to(x.type->dtype, sum);
        if (keeps_int8)
          kept[static_cast<std::int64_t>(i) * out + n] = products[i];
        else if (args.outputs.size() > 1)
          store(args.outputs[1 + i], t * out + n, products[i]);
      }
      store(h, t * out + n, factor * evaluate(activation, products[0], products[1]).value);
    }
    if (!keeps_int8) return;
    for (std::size_t i = 0; i < count; ++i)
      quantize_row(kept + static_cast<std::int64_t>(i) * out, t, args.outputs[1 + i]);
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
  const std::int64_t in = columns(dy), out = columns(gate);
  for_rows(rows(gate), at.is_grouped ? &args.inputs[2] : nullptr,
           [&](std::int64_t t, std::int64_t group) {
             const std::int64_t slot = weights != nullptr ? load_index(*row_map, t) : t;
             const std::int64_t row = weights != nullptr ? slot / columns(*weights) : t;
             const double factor = weights != nullptr ? load(*weights, slot) : 1.0;
             double dweight = 0;
             for (std::int64_t f = 0; f < out; ++f) {
               double dh = 0;
               for (std::int64_t n = 0; n < in; ++n)
                 dh += load(dy, row * in + n) * load_weight(weight, (group * in + n) * out + f);
               dh = round_to(dy.type->dtype, dh);
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

std::int64_t activation_with_codes_workspace_bytes(const spec::Problem& problem) {
  return spec::activation_inputs(*problem.attributes).num_weights * problem.outputs[0].dim(1) *
         std::int64_t{sizeof(double)};
}

void grouped_linear_activation(const Arguments& args) { forward(args); }
void grouped_linear_activation_gradient(const Arguments& args) { backward(args); }
void grouped_linear_activation_gradient_with_weights(const Arguments& args) { backward(args); }
void grouped_linear_activation_with_codes(const Arguments& args) { forward(args); }
void grouped_linear_activation_with_products(const Arguments& args) { forward(args); }
void linear_activation(const Arguments& args) { forward(args); }
void linear_activation_gradient(const Arguments& args) { backward(args); }
void linear_activation_with_codes(const Arguments& args) { forward(args); }
void linear_activation_with_products(const Arguments& args) { forward(args); }

}  // namespace anabatic::kernels::ref
