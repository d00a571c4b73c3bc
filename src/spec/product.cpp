// SPDX-License-Identifier: Apache-2.0
#include "spec/product.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace anabatic::spec {
namespace {

using enum ProductRole;

constexpr ProductForm grouped(ProductForm form) {
  form.is_grouped = true;
  return form;
}
constexpr ProductForm several(std::string_view op, ProductRole role) {
  return {.op = op, .role = role, .has_several = true};
}
constexpr ProductForm activated(std::string_view op, KeptProducts keeps) {
  return {.op = op, .role = kForward, .has_activation = true, .keeps = keeps};
}
constexpr ProductForm activation_gradient(std::string_view op, bool has_row_weights = false) {
  return {
      .op = op, .role = kInputGradient, .has_activation = true, .has_row_weights = has_row_weights};
}
constexpr ProductForm squares(std::string_view op) {
  return {.op = op, .role = kWeightGradient, .sums_squares = true};
}

constexpr std::array kForms{
    grouped({"grouped_linear", kForward}),
    grouped(activated("grouped_linear_activation", KeptProducts::kNone)),
    grouped(activation_gradient("grouped_linear_activation_gradient")),
    grouped(activation_gradient("grouped_linear_activation_gradient_with_weights", true)),
    grouped(activated("grouped_linear_activation_with_codes", KeptProducts::kInt8)),
    grouped(activated("grouped_linear_activation_with_products", KeptProducts::kWhole)),
    grouped({"grouped_linear_input_gradient", kInputGradient}),
    grouped(several("grouped_linear_many", kForward)),
    grouped(several("grouped_linear_many_input_gradient", kInputGradient)),
    grouped(several("grouped_linear_many_weight_gradient", kWeightGradient)),
    grouped({"grouped_linear_weight_gradient", kWeightGradient}),
    grouped(squares("grouped_linear_weight_gradient_squares")),
    ProductForm{"linear", kForward},
    activated("linear_activation", KeptProducts::kNone),
    activation_gradient("linear_activation_gradient"),
    activated("linear_activation_with_codes", KeptProducts::kInt8),
    activated("linear_activation_with_products", KeptProducts::kWhole),
    ProductForm{"linear_input_gradient", kInputGradient},
    several("linear_many", kForward),
    several("linear_many_input_gradient", kInputGradient),
    several("linear_many_weight_gradient", kWeightGradient),
    ProductForm{"linear_weight_gradient", kWeightGradient},
    squares("linear_weight_gradient_squares"),
};

}  // namespace

bool ProductForm::is_like(const ProductForm& other) const {
  return role == other.role && is_grouped == other.is_grouped && has_several == other.has_several &&
         has_activation == other.has_activation && keeps == other.keeps &&
         has_row_weights == other.has_row_weights && sums_squares == other.sums_squares;
}

const ProductForm* find_product(std::string_view op) {
  const auto* found = std::find_if(kForms.begin(), kForms.end(),
                                   [&](const ProductForm& form) { return form.op == op; });
  return found == kForms.end() ? nullptr : found;
}

const ProductForm& product_like(const ProductForm& form) {
  const auto* found = std::find_if(kForms.begin(), kForms.end(),
                                   [&](const ProductForm& other) { return other.is_like(form); });
  ANABATIC_CHECK(found != kForms.end(), "[product] no op with the fields of a changed '{}'",
                 form.op);
  return *found;
}

}  // namespace anabatic::spec
