// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kernels/ref/rows.h"
#include "tensor/panels.h"

namespace anabatic::kernels {
namespace {

Support check(const TensorType& type, const char* kind, std::size_t i) {
  const bool known = type.dtype == DType::kFloat64 || type.dtype == DType::kFloat32 ||
                     type.dtype == DType::kBFloat16 || type.dtype == DType::kInt32 ||
                     type.dtype == DType::kUInt16 || type.dtype == DType::kUInt8 ||
                     type.dtype == DType::kInt8;
  if (!known)
    return no(fmt::format("{} {} is {}; ref takes f64, f32, bf16, i32, u16, u8 and i8", kind, i,
                          to_string(type.dtype)));
  if (type.layout != kRowMajor && !is_panels(type.layout))
    return no(fmt::format("{} {} has layout {}; ref takes row-major and packed tensors", kind, i,
                          text(type.layout)));
  return yes();
}

Support supports(const spec::Problem& problem) {
  for (std::size_t i = 0; i < problem.inputs.size(); ++i)
    if (Support support = check(problem.inputs[i], "input", i); !support) return support;
  for (std::size_t i = 0; i < problem.outputs.size(); ++i)
    if (Support support = check(problem.outputs[i], "output", i); !support) return support;
  return yes();
}

#define ANABATIC_REF_ROW(op, workspace_bytes) \
  Kernel { "ref:" #op, #op, supports, workspace_bytes, nullptr, ref::op }

constexpr Kernel kRows[] = {
    ANABATIC_REF_ROW(activation, nullptr),
    ANABATIC_REF_ROW(activation_gradient, nullptr),
    ANABATIC_REF_ROW(add, nullptr),
    ANABATIC_REF_ROW(add_rms_norm, nullptr),
    ANABATIC_REF_ROW(attention, ref::attention_workspace_bytes),
    ANABATIC_REF_ROW(attention_gradient, ref::attention_gradient_workspace_bytes),
    ANABATIC_REF_ROW(cache_write, nullptr),
    ANABATIC_REF_ROW(cast, nullptr),
    ANABATIC_REF_ROW(clip_factor, nullptr),
    ANABATIC_REF_ROW(cross_entropy, nullptr),
    ANABATIC_REF_ROW(cross_entropy_gradient, nullptr),
    ANABATIC_REF_ROW(dequantize, nullptr),
    ANABATIC_REF_ROW(embedding, nullptr),
    ANABATIC_REF_ROW(embedding_weight_gradient, nullptr),
    ANABATIC_REF_ROW(fill, nullptr),
    ANABATIC_REF_ROW(global_norm, nullptr),
    ANABATIC_REF_ROW(grouped_linear, nullptr),
    ANABATIC_REF_ROW(grouped_linear_activation, nullptr),
    ANABATIC_REF_ROW(grouped_linear_activation_gradient, nullptr),
    ANABATIC_REF_ROW(grouped_linear_activation_gradient_with_weights, nullptr),
    ANABATIC_REF_ROW(grouped_linear_activation_with_codes,
                     ref::activation_with_codes_workspace_bytes),
    ANABATIC_REF_ROW(grouped_linear_activation_with_products, nullptr),
    ANABATIC_REF_ROW(grouped_linear_input_gradient, nullptr),
    ANABATIC_REF_ROW(grouped_linear_many, nullptr),
    ANABATIC_REF_ROW(grouped_linear_many_input_gradient, nullptr),
    ANABATIC_REF_ROW(grouped_linear_many_weight_gradient, nullptr),
    ANABATIC_REF_ROW(grouped_linear_weight_gradient, nullptr),
    ANABATIC_REF_ROW(grouped_linear_weight_gradient_squares, nullptr),
    ANABATIC_REF_ROW(head_loss, ref::head_loss_workspace_bytes),
    ANABATIC_REF_ROW(head_loss_with_gradient, ref::head_loss_workspace_bytes),
    ANABATIC_REF_ROW(linear, nullptr),
    ANABATIC_REF_ROW(linear_activation, nullptr),
    ANABATIC_REF_ROW(linear_activation_gradient, nullptr),
    ANABATIC_REF_ROW(linear_activation_with_codes, ref::activation_with_codes_workspace_bytes),
    ANABATIC_REF_ROW(linear_activation_with_products, nullptr),
    ANABATIC_REF_ROW(linear_input_gradient, nullptr),
    ANABATIC_REF_ROW(linear_many, nullptr),
    ANABATIC_REF_ROW(linear_many_input_gradient, nullptr),
    ANABATIC_REF_ROW(linear_many_weight_gradient, nullptr),
    ANABATIC_REF_ROW(linear_weight_gradient, nullptr),
    ANABATIC_REF_ROW(linear_weight_gradient_squares, nullptr),
    ANABATIC_REF_ROW(load_balancing_loss, nullptr),
    ANABATIC_REF_ROW(load_balancing_loss_gradient, nullptr),
    ANABATIC_REF_ROW(optimizer_step, nullptr),
    ANABATIC_REF_ROW(pack, nullptr),
    ANABATIC_REF_ROW(permute, nullptr),
    ANABATIC_REF_ROW(permute_gradient, nullptr),
    ANABATIC_REF_ROW(quantize, ref::quantize_workspace_bytes),
    ANABATIC_REF_ROW(reload, nullptr),
    ANABATIC_REF_ROW(rms_norm, nullptr),
    ANABATIC_REF_ROW(rms_norm_input_gradient, nullptr),
    ANABATIC_REF_ROW(rms_norm_weight_gradient, nullptr),
    ANABATIC_REF_ROW(rope, nullptr),
    ANABATIC_REF_ROW(rope_pair, nullptr),
    ANABATIC_REF_ROW(rope_table, nullptr),
    ANABATIC_REF_ROW(route_sort, nullptr),
    ANABATIC_REF_ROW(router, nullptr),
    ANABATIC_REF_ROW(router_gradient, nullptr),
    ANABATIC_REF_ROW(router_z_loss, nullptr),
    ANABATIC_REF_ROW(router_z_loss_gradient, nullptr),
    ANABATIC_REF_ROW(scale, nullptr),
    ANABATIC_REF_ROW(sequence_balance_loss, nullptr),
    ANABATIC_REF_ROW(sequence_balance_loss_gradient, nullptr),
    ANABATIC_REF_ROW(sum_rows, nullptr),
    ANABATIC_REF_ROW(sum_squares, nullptr),
    ANABATIC_REF_ROW(unpermute, nullptr),
    ANABATIC_REF_ROW(unpermute_gradient, nullptr),
};

#undef ANABATIC_REF_ROW

}  // namespace

std::span<const Kernel> ref_table() { return kRows; }

}  // namespace anabatic::kernels
