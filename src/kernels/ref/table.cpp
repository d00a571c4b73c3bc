// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kernels/ref/rows.h"
#include "tensor/panels.h"

namespace anabatic::kernels {
namespace {

Support check(const TensorType& type, const char* kind, std::size_t i) {
  const bool known = type.dtype == DType::kFloat64 || type.dtype == DType::kFloat32 ||
                     type.dtype == DType::kBFloat16 || type.dtype == DType::kFloat16 ||
                     type.dtype == DType::kInt32 || type.dtype == DType::kUInt16 ||
                     type.dtype == DType::kUInt8 || type.dtype == DType::kInt8;
  if (!known)
    return no(fmt::format("{} {} is {}; ref takes f64, f32, bf16, f16, i32, u16, u8 and i8", kind,
                          i, to_string(type.dtype)));
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

constexpr Kernel row(std::string_view name, decltype(Kernel::run)::Plain run,
                     decltype(Kernel::workspace_bytes)::Plain workspace_bytes = nullptr) {
  return {name, name.substr(4), supports, workspace_bytes, nullptr, run};
}

constexpr Kernel kRows[] = {
    row("ref:activation", ref::activation),
    row("ref:activation_gradient", ref::activation_gradient),
    row("ref:add", ref::add),
    row("ref:add_norm_statistics", ref::add_norm_statistics),
    row("ref:add_rms_norm", ref::add_rms_norm),
    row("ref:all_gather", ref::exchange_alone),
    row("ref:all_reduce", ref::exchange_alone),
    row("ref:attention", ref::attention, ref::attention_workspace_bytes),
    row("ref:attention_gradient", ref::attention_gradient, ref::attention_gradient_workspace_bytes),
    row("ref:cache_write", ref::cache_write),
    row("ref:cast", ref::cast),
    row("ref:clamp", ref::clamp),
    row("ref:clamp_gradient", ref::clamp_gradient),
    row("ref:clip_factor", ref::clip_factor),
    row("ref:cross_entropy", ref::cross_entropy),
    row("ref:cross_entropy_gradient", ref::cross_entropy_gradient),
    row("ref:dequantize", ref::dequantize),
    row("ref:dispatch_map", ref::dispatch_map),
    row("ref:dropout", ref::dropout),
    row("ref:embedding", ref::embedding),
    row("ref:embedding_weight_gradient", ref::embedding_weight_gradient),
    row("ref:exchange_rows", ref::exchange_rows),
    row("ref:expert_bias", ref::expert_bias),
    row("ref:expert_bias_router_gradient", ref::expert_bias_router_gradient),
    row("ref:expert_bias_weight_gradient", ref::expert_bias_weight_gradient),
    row("ref:fake_quantize", ref::fake_quantize),
    row("ref:fake_quantize_tokens", ref::fake_quantize_tokens),
    row("ref:fill", ref::fill),
    row("ref:gate_rows", ref::gate_rows),
    row("ref:gate_rows_gradient", ref::gate_rows_gradient),
    row("ref:global_norm", ref::global_norm),
    row("ref:grouped_linear", ref::grouped_linear),
    row("ref:grouped_linear_activation", ref::grouped_linear_activation),
    row("ref:grouped_linear_activation_gradient", ref::grouped_linear_activation_gradient),
    row("ref:grouped_linear_activation_gradient_with_weights",
        ref::grouped_linear_activation_gradient_with_weights),
    row("ref:grouped_linear_activation_with_codes", ref::grouped_linear_activation_with_codes),
    row("ref:grouped_linear_activation_with_products",
        ref::grouped_linear_activation_with_products),
    row("ref:grouped_linear_input_gradient", ref::grouped_linear_input_gradient),
    row("ref:grouped_linear_many", ref::grouped_linear_many),
    row("ref:grouped_linear_many_input_gradient", ref::grouped_linear_many_input_gradient),
    row("ref:grouped_linear_many_weight_gradient", ref::grouped_linear_many_weight_gradient),
    row("ref:grouped_linear_weight_gradient", ref::grouped_linear_weight_gradient),
    row("ref:grouped_linear_weight_gradient_squares", ref::grouped_linear_weight_gradient_squares),
    row("ref:grouped_sparse_linear", ref::grouped_sparse_linear),
    row("ref:grouped_sparse_linear_input_gradient", ref::grouped_sparse_linear_input_gradient),
    row("ref:grouped_sparse_linear_weight_gradient", ref::grouped_sparse_linear_weight_gradient),
    row("ref:head_log_probabilities", ref::head_log_probabilities,
        ref::label_log_probabilities_workspace_bytes),
    row("ref:head_loss", ref::head_loss, ref::head_loss_workspace_bytes),
    row("ref:head_loss_with_gradient", ref::head_loss_with_gradient,
        ref::head_loss_workspace_bytes),
    row("ref:head_loss_with_input_gradient", ref::head_loss_with_input_gradient,
        ref::head_loss_workspace_bytes),
    row("ref:join_heads", ref::join_heads),
    row("ref:join_heads_gradient", ref::join_heads_gradient),
    row("ref:label_log_probabilities", ref::label_log_probabilities,
        ref::label_log_probabilities_workspace_bytes),
    row("ref:layer_norm", ref::layer_norm),
    row("ref:layer_norm_input_gradient", ref::layer_norm_input_gradient),
    row("ref:layer_norm_weight_gradient", ref::layer_norm_weight_gradient),
    row("ref:linear", ref::linear),
    row("ref:linear_activation", ref::linear_activation),
    row("ref:linear_activation_gradient", ref::linear_activation_gradient),
    row("ref:linear_activation_with_codes", ref::linear_activation_with_codes),
    row("ref:linear_activation_with_products", ref::linear_activation_with_products),
    row("ref:linear_input_gradient", ref::linear_input_gradient),
    row("ref:linear_many", ref::linear_many),
    row("ref:linear_many_input_gradient", ref::linear_many_input_gradient),
    row("ref:linear_many_weight_gradient", ref::linear_many_weight_gradient),
    row("ref:linear_weight_gradient", ref::linear_weight_gradient),
    row("ref:linear_weight_gradient_squares", ref::linear_weight_gradient_squares),
    row("ref:load_balancing_loss", ref::load_balancing_loss),
    row("ref:load_balancing_loss_gradient", ref::load_balancing_loss_gradient),
    row("ref:norm_statistics", ref::norm_statistics),
    row("ref:optimizer_step", ref::optimizer_step),
    row("ref:pack", ref::pack),
    row("ref:pack_sparse", ref::pack_sparse),
    row("ref:permute", ref::permute),
    row("ref:permute_gradient", ref::permute_gradient),
    row("ref:preference_loss", ref::preference_loss, ref::preference_loss_workspace_bytes),
    row("ref:quantize", ref::quantize, ref::quantize_workspace_bytes),
    row("ref:reduce_scatter", ref::exchange_alone),
    row("ref:reload", ref::reload),
    row("ref:reshape", ref::reload),
    row("ref:rms_norm", ref::rms_norm),
    row("ref:rms_norm_input_gradient", ref::rms_norm_input_gradient),
    row("ref:rms_norm_weight_gradient", ref::rms_norm_weight_gradient),
    row("ref:rope", ref::rope),
    row("ref:rope_pair", ref::rope_pair),
    row("ref:rope_table", ref::rope_table),
    row("ref:route_sort", ref::route_sort),
    row("ref:router", ref::router),
    row("ref:router_gradient", ref::router_gradient),
    row("ref:router_z_loss", ref::router_z_loss),
    row("ref:router_z_loss_gradient", ref::router_z_loss_gradient),
    row("ref:scale", ref::scale),
    row("ref:scale_by", ref::scale_by),
    row("ref:sequence_balance_loss", ref::sequence_balance_loss),
    row("ref:sequence_balance_loss_gradient", ref::sequence_balance_loss_gradient),
    row("ref:sinks_gradient", ref::sinks_gradient),
    row("ref:sparse_index", ref::sparse_index),
    row("ref:sparse_linear", ref::sparse_linear),
    row("ref:sparse_linear_input_gradient", ref::sparse_linear_input_gradient),
    row("ref:sparse_linear_weight_gradient", ref::sparse_linear_weight_gradient),
    row("ref:sum_leaves", ref::sum_leaves),
    row("ref:sum_rows", ref::sum_rows),
    row("ref:sum_squares", ref::sum_squares),
    row("ref:sum_squares_of_parts", ref::sum_squares_of_parts),
    row("ref:unpermute", ref::unpermute),
    row("ref:unpermute_gradient", ref::unpermute_gradient),
};

}  // namespace

std::span<const Kernel> ref_table() { return kRows; }

}  // namespace anabatic::kernels
