// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kernels/cpu/linear_rows.h"
#include "kernels/cpu/optimizer/rows.h"
#include "kernels/cpu/packing_rows.h"
#include "kernels/cpu/scalar_rows.h"
#include "kernels/cpu/vector_rows.h"
#include "tensor/panels.h"

namespace anabatic::kernels {
namespace {

Support check(const TensorType& type, bool allows_f64, const char* kind, std::size_t i) {
  const bool known = type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16 ||
                     type.dtype == DType::kInt32 || (allows_f64 && type.dtype == DType::kFloat64);
  if (!known)
    return no(fmt::format("{} {} is {}; this row takes f32, bf16 and i32", kind, i,
                          to_string(type.dtype)));
  if (type.layout != kRowMajor)
    return no(fmt::format("{} {} has layout {}; this row takes row-major tensors", kind, i,
                          text(type.layout)));
  return yes();
}

// f64 in and out: of ops whose contract has it whatever the dtype of activations.
template <bool kInputsF64, bool kOutputsF64>
Support supports(const spec::Problem& problem) {
  for (std::size_t i = 0; i < problem.inputs.size(); ++i)
    if (Support support = check(problem.inputs[i], kInputsF64, "input", i); !support)
      return support;
  for (std::size_t i = 0; i < problem.outputs.size(); ++i)
    if (Support support = check(problem.outputs[i], kOutputsF64, "output", i); !support)
      return support;
  return yes();
}
// Row-major or packed, all but f64 outputs.
template <bool kOutputsF64>
Support supports_panels(const spec::Problem& problem) {
  const auto unpacked = [](TensorType type) {
    if (is_panels(type.layout)) type.layout = kRowMajor;
    return type;
  };
  for (std::size_t i = 0; i < problem.inputs.size(); ++i)
    if (Support support = check(unpacked(problem.inputs[i]), false, "input", i); !support)
      return support;
  for (std::size_t i = 0; i < problem.outputs.size(); ++i)
    if (Support support = check(unpacked(problem.outputs[i]), kOutputsF64, "output", i); !support)
      return support;
  return yes();
}
constexpr Kernel update_row(std::string_view name, Support (*supports)(const spec::Problem&),
                            void (*run)(const Arguments&)) {
  return {name, "optimizer_step", supports, nullptr, nullptr, run, nullptr, cpu::watched_states};
}
// From a row-major matrix, from f32 panels, or from bf16 panels to bf16.
Support supports_packing(const spec::Problem& problem) {
  const TensorType& x = problem.inputs[0];
  if (x.layout != kRowMajor && x.layout != panels_layout(false))
    return no(fmt::format("expected rows or panels, got {}", to_string(x)));
  if (x.layout != kRowMajor && x.dtype == DType::kBFloat16 && problem.outputs[0].dtype != x.dtype)
    return no(fmt::format("expected bf16 from panels of bf16, got {}",
                          to_string(problem.outputs[0].dtype)));
  if (x.layout == kRowMajor && problem.outputs[0].layout == kRowMajor) return no("nothing to pack");
  return supports_panels<false>(problem);
}
// Codes, i8, and what they stand for.
Support supports_codes(const spec::Problem& problem) {
  const auto widened = [](std::span<const TensorType> types) {
    std::vector<TensorType> result(types.begin(), types.end());
    for (TensorType& type : result)
      if (type.dtype == DType::kInt8) type.dtype = DType::kInt32;
    return result;
  };
  const std::vector<TensorType> inputs = widened(problem.inputs),
                                outputs = widened(problem.outputs);
  return supports<false, false>({.op = problem.op,
                                 .attributes = problem.attributes,
                                 .inputs = inputs,
                                 .outputs = outputs,
                                 .device = problem.device});
}
constexpr auto kActivations = supports<false, false>;
constexpr auto kF64Inputs = supports<true, false>;
constexpr auto kF64Outputs = supports<false, true>;

template <Support (*kTypes)(const spec::Problem&)>
Support supports_avx512(const spec::Problem& problem) {
  if (!problem.device->has("avx512f")) return no("the device has no avx512f");
  return kTypes(problem);
}
template <Support (*kTypes)(const spec::Problem&)>
Support supports_avx2(const spec::Problem& problem) {
  if (!problem.device->has("avx2")) return no("the device has no avx2");
  return kTypes(problem);
}

// What is not of a dtype of its own, as log-sum-exps, codes and scales are, is bf16 like output 0.
template <Support (*kTypes)(const spec::Problem&)>
Support supports_avx512_bf16(const spec::Problem& problem) {
  if (!problem.device->has("avx512_bf16")) return no("the device has no avx512_bf16");
  const DType dtype = problem.outputs[0].dtype;
  if (dtype != DType::kBFloat16)
    return no(fmt::format("output 0 is {}; this row gives bf16", to_string(dtype)));
  return kTypes(problem);
}

#define ANABATIC_SCALAR_ROW(op, types, workspace) ANABATIC_SCALAR(op, types, workspace, nullptr)
#define ANABATIC_SCALAR(op, types, workspace, prepare) \
  Kernel { "cpu:" #op, #op, types, workspace, prepare, cpu::op }
#define ANABATIC_VECTOR_ROWS(op, types, workspace) ANABATIC_VECTOR(op, types, workspace, nullptr)
// Ops over whole activations, whose results may be too large for the caches.
#define ANABATIC_STREAM_ROWS(op, workspace) \
  ANABATIC_VECTOR(op, kActivations, workspace, cpu::prepare_stream)

#ifdef ANABATIC_CPU_X86
#define ANABATIC_ATTENTION_ROWS(op)                                                    \
  Kernel{"cpu:" #op "_avx512_bf16",       #op,     supports_avx512_bf16<kActivations>, \
         cpu::op##_pairs_workspace_bytes, nullptr, cpu::avx512_bf16::op},              \
      ANABATIC_VECTOR_ROWS(op, kActivations, cpu::op##_workspace_bytes)
#define ANABATIC_DEQUANTIZE_ROWS               \
  Kernel{"cpu:dequantize_avx512_bf16",         \
         "dequantize",                         \
         supports_avx512_bf16<supports_codes>, \
         nullptr,                              \
         cpu::prepare_stream,                  \
         cpu::avx512_bf16::dequantize},        \
      ANABATIC_VECTOR(dequantize, supports_codes, nullptr, cpu::prepare_stream)
#define ANABATIC_VECTOR(op, types, workspace, prepare)                                            \
  Kernel{"cpu:" #op "_avx512", #op, supports_avx512<types>, workspace, prepare, cpu::avx512::op}, \
      Kernel{"cpu:" #op "_avx2", #op, supports_avx2<types>, workspace, prepare, cpu::avx2::op},   \
      Kernel {                                                                                    \
    "cpu:" #op, #op, types, workspace, prepare, cpu::portable::op                                 \
  }
#else
#define ANABATIC_ATTENTION_ROWS(op) \
  ANABATIC_VECTOR_ROWS(op, kActivations, cpu::op##_workspace_bytes)
#define ANABATIC_DEQUANTIZE_ROWS \
  ANABATIC_VECTOR(dequantize, supports_codes, nullptr, cpu::prepare_stream)
#define ANABATIC_VECTOR(op, types, workspace, prepare) \
  Kernel { "cpu:" #op, #op, types, workspace, prepare, cpu::portable::op }
#endif

#define ANABATIC_LINEAR_ROW(op, rows, form, variant, engine)                  \
  Kernel {                                                                    \
    "cpu:" #op "_" #variant, #op, cpu::rows<cpu::Engine::engine>::supports,   \
        cpu::rows<cpu::Engine::engine>::workspace_bytes, cpu::prepare_stream, \
        cpu::rows<cpu::Engine::engine>::form                                  \
  }
// A linear is one group of all rows.
#define ANABATIC_LINEAR_ROWS(op, rows, form)                     \
  ANABATIC_LINEAR_ROW(op, rows, form, avx512_bf16, kAvx512Bf16), \
      ANABATIC_LINEAR_ROW(op, rows, form, avx512, kAvx512),      \
      ANABATIC_LINEAR_ROW(op, rows, form, avx2, kAvx2),          \
      ANABATIC_LINEAR_ROW(op, rows, form, portable, kPortable)

#define ANABATIC_HEAD_ROW(op, engine, isa)                                                      \
  Kernel {                                                                                      \
    "cpu:" #op "_" #engine, #op,                                                                \
        cpu::HeadLossRows<cpu::gemm_##engine, &cpu::isa::kHeadStage>::supports,                 \
        cpu::HeadLossRows<cpu::gemm_##engine, &cpu::isa::kHeadStage>::workspace_bytes, nullptr, \
        cpu::HeadLossRows<cpu::gemm_##engine, &cpu::isa::kHeadStage>::run,                      \
        cpu::HeadLossRows<cpu::gemm_##engine, &cpu::isa::kHeadStage>::slicing_bytes             \
  }
#ifdef ANABATIC_CPU_X86
#define ANABATIC_HEAD_ROWS(op)                                                       \
  ANABATIC_HEAD_ROW(op, avx512_bf16, avx512), ANABATIC_HEAD_ROW(op, avx512, avx512), \
      ANABATIC_HEAD_ROW(op, avx2, avx2), ANABATIC_HEAD_ROW(op, portable, portable)
#else
#define ANABATIC_HEAD_ROWS(op) ANABATIC_HEAD_ROW(op, portable, portable)
#endif

#define ANABATIC_ACTIVATION_ROW(op, form, isa)                                                    \
  Kernel {                                                                                        \
    "cpu:" #op "_" #isa, #op,                                                                     \
        cpu::LinearActivationRows<cpu::gemm_##isa, &cpu::isa::kActivationStage>::supports,        \
        cpu::LinearActivationRows<cpu::gemm_##isa, &cpu::isa::kActivationStage>::workspace_bytes, \
        nullptr, cpu::LinearActivationRows<cpu::gemm_##isa, &cpu::isa::kActivationStage>::form    \
  }
#ifdef ANABATIC_CPU_X86
#define ANABATIC_ACTIVATION_ROWS(op, form)                                                   \
  ANABATIC_ACTIVATION_ROW(op, form, avx512_bf16), ANABATIC_ACTIVATION_ROW(op, form, avx512), \
      ANABATIC_ACTIVATION_ROW(op, form, avx2), ANABATIC_ACTIVATION_ROW(op, form, portable)
#else
#define ANABATIC_ACTIVATION_ROWS(op, form) ANABATIC_ACTIVATION_ROW(op, form, portable)
#endif

// Calls that are cut into slices: see packing_rows.h.
template <class Rows>
constexpr Kernel packing_row(std::string_view name, std::string_view op) {
  return {name,
          op,
          Rows::supports,
          Rows::workspace_bytes,
          cpu::prepare_stream,
          Rows::run,
          Rows::slicing_bytes};
}
template <class Rows, void (*kPack)(const Arguments&)>
using LinearSlices = cpu::PackingRows<Rows, Rows::input_gradient, kPack>;
template <const cpu::GemmEngine* (*kEngine)(), const cpu::ActivationStage* kStage,
          void (*kPack)(const Arguments&), class Rows = cpu::LinearActivationRows<kEngine, kStage>>
using ActivationSlices = cpu::PackingRows<Rows, Rows::gradient, kPack>;

#define ANABATIC_LINEAR_SLICE(op, rows, variant, engine, isa)                \
  packing_row<LinearSlices<cpu::rows<cpu::Engine::engine>, cpu::isa::pack>>( \
      "cpu:" #op "_slices_" #variant, #op)
#define ANABATIC_ACTIVATION_SLICE(op, isa, packing)                                                \
  packing_row<ActivationSlices<cpu::gemm_##isa, &cpu::isa::kActivationStage, cpu::packing::pack>>( \
      "cpu:" #op "_slices_" #isa, #op)
#ifdef ANABATIC_CPU_X86
#define ANABATIC_LINEAR_SLICES(op, rows)                             \
  ANABATIC_LINEAR_SLICE(op, rows, avx512_bf16, kAvx512Bf16, avx512), \
      ANABATIC_LINEAR_SLICE(op, rows, avx512, kAvx512, avx512),      \
      ANABATIC_LINEAR_SLICE(op, rows, avx2, kAvx2, avx2),            \
      ANABATIC_LINEAR_SLICE(op, rows, portable, kPortable, portable)
#define ANABATIC_ACTIVATION_SLICES(op)                                                          \
  ANABATIC_ACTIVATION_SLICE(op, avx512_bf16, avx512),                                           \
      ANABATIC_ACTIVATION_SLICE(op, avx512, avx512), ANABATIC_ACTIVATION_SLICE(op, avx2, avx2), \
      ANABATIC_ACTIVATION_SLICE(op, portable, portable)
#else
#define ANABATIC_LINEAR_SLICES(op, rows) \
  ANABATIC_LINEAR_SLICE(op, rows, portable, kPortable, portable)
#define ANABATIC_ACTIVATION_SLICES(op) ANABATIC_ACTIVATION_SLICE(op, portable, portable)
#endif

constexpr Kernel kRows[] = {
    ANABATIC_STREAM_ROWS(activation, nullptr),
    ANABATIC_STREAM_ROWS(activation_gradient, nullptr),
    ANABATIC_STREAM_ROWS(add, nullptr),
    ANABATIC_STREAM_ROWS(add_rms_norm, cpu::paired_weight_workspace_bytes),
    ANABATIC_ATTENTION_ROWS(attention),
    ANABATIC_ATTENTION_ROWS(attention_gradient),
    ANABATIC_SCALAR_ROW(cache_write, kActivations, nullptr),
    ANABATIC_VECTOR_ROWS(cast, kActivations, nullptr),
    ANABATIC_SCALAR_ROW(clip_factor, kActivations, nullptr),
    ANABATIC_VECTOR_ROWS(cross_entropy, kActivations, cpu::row_doubles_workspace_bytes),
    ANABATIC_VECTOR_ROWS(cross_entropy_gradient, kActivations, nullptr),
    ANABATIC_DEQUANTIZE_ROWS,
    ANABATIC_SCALAR(embedding, kActivations, nullptr, cpu::prepare_stream),
    ANABATIC_VECTOR_ROWS(embedding_weight_gradient, kActivations,
                         cpu::embedding_gradient_workspace_bytes),
    ANABATIC_SCALAR_ROW(fill, kF64Outputs, nullptr),
    ANABATIC_SCALAR_ROW(global_norm, kF64Inputs, nullptr),
    ANABATIC_LINEAR_ROWS(grouped_linear, LinearRows, forward),
    ANABATIC_ACTIVATION_ROWS(grouped_linear_activation, forward),
    ANABATIC_ACTIVATION_ROWS(grouped_linear_activation_gradient, gradient),
    ANABATIC_ACTIVATION_SLICES(grouped_linear_activation_gradient),
    ANABATIC_ACTIVATION_ROWS(grouped_linear_activation_gradient_with_weights, gradient),
    ANABATIC_ACTIVATION_SLICES(grouped_linear_activation_gradient_with_weights),
    ANABATIC_ACTIVATION_ROWS(grouped_linear_activation_with_codes, forward),
    ANABATIC_ACTIVATION_ROWS(grouped_linear_activation_with_products, forward),
    ANABATIC_LINEAR_ROWS(grouped_linear_input_gradient, LinearRows, input_gradient),
    ANABATIC_LINEAR_SLICES(grouped_linear_input_gradient, LinearRows),
    ANABATIC_LINEAR_ROWS(grouped_linear_many, LinearManyRows, forward),
    ANABATIC_LINEAR_ROWS(grouped_linear_many_input_gradient, LinearManyRows, input_gradient),
    ANABATIC_LINEAR_SLICES(grouped_linear_many_input_gradient, LinearManyRows),
    ANABATIC_LINEAR_ROWS(grouped_linear_many_weight_gradient, LinearManyRows, weight_gradient),
    ANABATIC_LINEAR_ROWS(grouped_linear_weight_gradient, LinearRows, weight_gradient),
    ANABATIC_LINEAR_ROWS(grouped_linear_weight_gradient_squares, LinearRows,
                         weight_gradient_squares),
    ANABATIC_HEAD_ROWS(head_loss),
    ANABATIC_HEAD_ROWS(head_loss_with_gradient),
    ANABATIC_LINEAR_ROWS(linear, LinearRows, forward),
    ANABATIC_ACTIVATION_ROWS(linear_activation, forward),
    ANABATIC_ACTIVATION_ROWS(linear_activation_gradient, gradient),
    ANABATIC_ACTIVATION_ROWS(linear_activation_with_codes, forward),
    ANABATIC_ACTIVATION_ROWS(linear_activation_with_products, forward),
    ANABATIC_LINEAR_ROWS(linear_input_gradient, LinearRows, input_gradient),
    ANABATIC_LINEAR_ROWS(linear_many, LinearManyRows, forward),
    ANABATIC_LINEAR_ROWS(linear_many_input_gradient, LinearManyRows, input_gradient),
    ANABATIC_LINEAR_ROWS(linear_many_weight_gradient, LinearManyRows, weight_gradient),
    ANABATIC_LINEAR_ROWS(linear_weight_gradient, LinearRows, weight_gradient),
    ANABATIC_LINEAR_ROWS(linear_weight_gradient_squares, LinearRows, weight_gradient_squares),
    ANABATIC_SCALAR_ROW(load_balancing_loss, kActivations, nullptr),
    ANABATIC_SCALAR_ROW(load_balancing_loss_gradient, kActivations, nullptr),
#ifdef ANABATIC_CPU_X86
    update_row("cpu:optimizer_step_avx512", supports_avx512<cpu::supports_update>,
               cpu::avx512::optimizer_step),
    update_row("cpu:optimizer_step_avx2", supports_avx2<cpu::supports_update>,
               cpu::avx2::optimizer_step),
#endif
    update_row("cpu:optimizer_step", cpu::supports_update, cpu::portable::optimizer_step),
    ANABATIC_VECTOR_ROWS(pack, supports_packing, nullptr),
    ANABATIC_SCALAR(permute, kActivations, nullptr, cpu::prepare_stream),
    ANABATIC_STREAM_ROWS(permute_gradient, nullptr),
    ANABATIC_VECTOR_ROWS(quantize, supports_codes, nullptr),
    ANABATIC_SCALAR_ROW(reload, supports_panels<false>, nullptr),
    ANABATIC_STREAM_ROWS(rms_norm, cpu::paired_weight_workspace_bytes),
    ANABATIC_STREAM_ROWS(rms_norm_input_gradient, cpu::paired_weight_workspace_bytes),
    ANABATIC_VECTOR_ROWS(rms_norm_weight_gradient, kActivations,
                         cpu::column_partials_workspace_bytes),
    ANABATIC_STREAM_ROWS(rope, nullptr),
    ANABATIC_STREAM_ROWS(rope_pair, cpu::rope_pair_workspace_bytes),
    ANABATIC_SCALAR_ROW(rope_table, kActivations, nullptr),
    ANABATIC_SCALAR_ROW(route_sort, kActivations, cpu::route_sort_workspace_bytes),
    ANABATIC_VECTOR_ROWS(router, kActivations, cpu::router_workspace_bytes),
    ANABATIC_VECTOR_ROWS(router_gradient, kActivations, nullptr),
    ANABATIC_VECTOR_ROWS(router_z_loss, kActivations, cpu::row_doubles_workspace_bytes),
    ANABATIC_VECTOR_ROWS(router_z_loss_gradient, kActivations, nullptr),
    ANABATIC_VECTOR_ROWS(scale, kActivations, nullptr),
    ANABATIC_SCALAR_ROW(sequence_balance_loss, kActivations,
                        cpu::sequence_balance_loss_workspace_bytes),
    ANABATIC_SCALAR_ROW(sequence_balance_loss_gradient, kActivations, nullptr),
    ANABATIC_VECTOR_ROWS(sum_rows, kActivations, cpu::column_partials_workspace_bytes),
    ANABATIC_VECTOR_ROWS(sum_squares, supports_panels<true>, cpu::sum_squares_workspace_bytes),
    ANABATIC_STREAM_ROWS(unpermute, nullptr),
    ANABATIC_VECTOR_ROWS(unpermute_gradient, kActivations, nullptr),
};

#undef ANABATIC_ATTENTION_ROWS
#undef ANABATIC_DEQUANTIZE_ROWS
#undef ANABATIC_HEAD_ROW
#undef ANABATIC_HEAD_ROWS
#undef ANABATIC_LINEAR_ROW
#undef ANABATIC_LINEAR_ROWS
#undef ANABATIC_LINEAR_SLICE
#undef ANABATIC_LINEAR_SLICES
#undef ANABATIC_SCALAR
#undef ANABATIC_SCALAR_ROW
#undef ANABATIC_STREAM_ROWS
#undef ANABATIC_ACTIVATION_ROW
#undef ANABATIC_ACTIVATION_ROWS
#undef ANABATIC_ACTIVATION_SLICE
#undef ANABATIC_ACTIVATION_SLICES
#undef ANABATIC_VECTOR
#undef ANABATIC_VECTOR_ROWS

}  // namespace

std::span<const Kernel> cpu_table() { return kRows; }

}  // namespace anabatic::kernels
