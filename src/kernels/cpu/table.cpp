// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "kernels/cpu/linear_rows.h"
#include "kernels/cpu/optimizer/rows.h"
#include "kernels/cpu/packing_rows.h"
#include "kernels/cpu/scalar_rows.h"
#include "kernels/cpu/sparse/sparse_call.h"
#include "kernels/cpu/sparse/sparse_rows.h"
#include "kernels/cpu/vector_rows.h"
#include "spec/sparsity.h"
#include "tensor/panels.h"

namespace anabatic::kernels {
namespace {

// What a row takes in addition to f32, bf16 and i32. f64 is for ops that have f64 operands whatever
// the dtype of activations.
enum class Also : std::uint8_t { kNone, kF64, kF16 };

Support check(const TensorType& type, Also also, const char* kind, std::size_t i) {
  const bool known = type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16 ||
                     type.dtype == DType::kInt32 ||
                     (also == Also::kF64 && type.dtype == DType::kFloat64) ||
                     (also == Also::kF16 && type.dtype == DType::kFloat16);
  if (!known)
    return no(fmt::format("{} {} is {}; this kernel takes f32, bf16{} and i32", kind, i,
                          to_string(type.dtype), also == Also::kF16 ? ", f16" : ""));
  if (type.layout != kRowMajor)
    return no(fmt::format("{} {} has layout {}; this kernel takes row-major tensors", kind, i,
                          text(type.layout)));
  return yes();
}

template <Also kOfInputs, Also kOfOutputs>
Support supports(const spec::Problem& problem) {
  for (std::size_t i = 0; i < problem.inputs.size(); ++i)
    if (Support support = check(problem.inputs[i], kOfInputs, "input", i); !support) return support;
  for (std::size_t i = 0; i < problem.outputs.size(); ++i)
    if (Support support = check(problem.outputs[i], kOfOutputs, "output", i); !support)
      return support;
  return yes();
}
// Operands are row-major or packed.
template <Also kOfInputs, Also kOfOutputs = kOfInputs>
Support supports_panels(const spec::Problem& problem) {
  const auto unpacked = [](TensorType type) {
    if (is_panels(type.layout)) type.layout = kRowMajor;
    return type;
  };
  for (std::size_t i = 0; i < problem.inputs.size(); ++i)
    if (Support support = check(unpacked(problem.inputs[i]), kOfInputs, "input", i); !support)
      return support;
  for (std::size_t i = 0; i < problem.outputs.size(); ++i)
    if (Support support = check(unpacked(problem.outputs[i]), kOfOutputs, "output", i); !support)
      return support;
  return yes();
}
// The mask of what is summed is in bytes.
Support supports_squares(const spec::Problem& problem) {
  spec::Problem of_values = problem;
  of_values.inputs = problem.inputs.first(1);
  return supports_panels<Also::kNone, Also::kF64>(of_values);
}
// Packs a row-major matrix, or f32 panels, or panels of 16 bits to the same dtype; to f16 whole
// matrices alone, of f32 or f16. To panels of int8 products what the op takes.
Support supports_packing(const spec::Problem& problem) {
  const TensorType& x = problem.inputs[0];
  if (is_int8_panels(problem.outputs[0])) return yes();
  if (x.layout != kRowMajor && x.layout != panels_layout(false))
    return no(fmt::format("expected rows or panels, got {}", to_string(x)));
  const DType to = problem.outputs[0].dtype;
  const bool is_half = x.dtype == DType::kFloat16 || to == DType::kFloat16;
  if (to != x.dtype && x.dtype != DType::kFloat32 && (is_half || x.layout != kRowMajor))
    return no(fmt::format("expected {} from {}, got {}", to_string(x.dtype), to_string(x),
                          to_string(to)));
  if (is_half &&
      (problem.attributes->contains("rows") || problem.attributes->contains("column_step")))
    return no("expected a whole matrix to f16");
  if (x.layout == kRowMajor && problem.outputs[0].layout == kRowMajor) return no("nothing to pack");
  return supports_panels<Also::kF16>(problem);
}
// The blocks of a sparse weight in f32, in f32 or bf16.
Support supports_sparse_packing(const spec::Problem& problem) {
  if (problem.inputs[0].dtype != DType::kFloat32)
    return no(fmt::format("expected f32, got {}", to_string(problem.inputs[0])));
  if (const DType to = problem.outputs[0].dtype; to != DType::kFloat32 && to != DType::kBFloat16)
    return no(fmt::format("expected f32 or bf16, got {}", to_string(problem.outputs[0])));
  return yes();
}
// Unstructured weights with rows of their dtype.
Support supports_csr(const spec::Problem& problem) {
  if (spec::get_string(*problem.attributes, "pattern") !=
      to_string(spec::SparsityPattern::kUnstructured))
    return no("expected unstructured");
  const DType dtype = problem.inputs[0].dtype;
  if (problem.inputs[1].dtype != dtype || (dtype != DType::kFloat32 && dtype != DType::kBFloat16))
    return no(fmt::format("expected operands in f32 or bf16, got {} and {}", to_string(dtype),
                          to_string(problem.inputs[1].dtype)));
  return yes();
}
Support supports_mask(const spec::Problem&) { return yes(); }  // what the op takes
// Rounds a matrix to a grid, from rows or panels of f32.
Support supports_grid(const spec::Problem& problem) {
  const TensorType& x = problem.inputs[0];
  if (x.dtype != DType::kFloat32 || (x.layout != kRowMajor && x.layout != panels_layout(false)))
    return no(fmt::format("expected f32 in rows or panels, got {}", to_string(x)));
  return supports_panels<Also::kNone>(problem);
}
// Matrices in int8 with scales in bf16, in addition to the types of `supports`.
Support supports_int8(const spec::Problem& problem) {
  for (const std::span<const TensorType> types : {problem.inputs, problem.outputs})
    for (const TensorType& type : types)
      if (type.is_quantized() && *type.blocks != int8_format(type.blocks->columns))
        return no(to_string(type) + " is not int8 in blocks of a row with scales in bf16");
  const auto values = [](std::span<const TensorType> types) {
    std::vector<TensorType> result(types.begin(), types.end());
    for (TensorType& type : result)
      if (type.is_quantized()) type.dtype = type.blocks->scale;
    return result;
  };
  const std::vector<TensorType> inputs = values(problem.inputs), outputs = values(problem.outputs);
  return supports<Also::kNone, Also::kNone>({.op = problem.op,
                                             .attributes = problem.attributes,
                                             .inputs = inputs,
                                             .outputs = outputs,
                                             .device = problem.device});
}
constexpr auto kActivations = supports<Also::kNone, Also::kNone>;
constexpr auto kAnyFloats = supports<Also::kF16, Also::kF16>;
constexpr auto kF64Inputs = supports<Also::kF64, Also::kNone>;
constexpr auto kF64Outputs = supports<Also::kNone, Also::kF64>;

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

// Output 0 is bf16. So are all other operands whose dtype the op does not fix.
template <Support (*kTypes)(const spec::Problem&)>
Support supports_avx512_bf16(const spec::Problem& problem) {
  if (!problem.device->has("avx512_bf16")) return no("the device has no avx512_bf16");
  const DType dtype = problem.outputs[0].dtype;
  if (dtype != DType::kBFloat16)
    return no(fmt::format("output 0 is {}; this kernel gives bf16", to_string(dtype)));
  return kTypes(problem);
}

namespace variants = cpu::variants;
using cpu::Engine;
using cpu::LinearManyRows;
using cpu::LinearRows;
using cpu::SparseRows;
using Supports = decltype(Kernel::supports)::Plain;
using Workspace = decltype(Kernel::workspace_bytes)::Plain;
using Prepare = decltype(Kernel::prepare)::Plain;
using Run = decltype(Kernel::run)::Plain;

// Rows of an op, best first; those without `op` are not built. A kernel's name is its variant: the
// full name is "cpu:", op, form and variant.
constexpr std::size_t kMostRows = 9;
struct OpRows {
  std::array<Kernel, kMostRows> kernels;
  std::string_view form = "";
};

#ifdef ANABATIC_CPU_X86
constexpr bool kIsX86 = true;
#else
constexpr bool kIsX86 = false;
#endif
constexpr Kernel on_x86(const Kernel& kernel) { return kIsX86 ? kernel : Kernel{}; }

template <Supports kTypes = kActivations>
constexpr OpRows scalar(std::string_view op, Run run, Workspace workspace = nullptr,
                        Prepare prepare = nullptr) {
  return {{Kernel{"", op, kTypes, workspace, prepare, run}}};
}

template <Supports kTypes = kActivations>
constexpr OpRows vector(const cpu::VectorKernel& kernel, Workspace workspace = nullptr,
                        Prepare prepare = nullptr) {
  const auto& [op, avx512, avx2, portable] = kernel;
  return {{on_x86({"_avx512", op, supports_avx512<kTypes>, workspace, prepare, avx512}),
           on_x86({"_avx2", op, supports_avx2<kTypes>, workspace, prepare, avx2}),
           Kernel{"", op, kTypes, workspace, prepare, portable}}};
}

// For ops over whole activations, whose results may be larger than the caches.
template <Supports kTypes = kActivations>
constexpr OpRows stream(const cpu::VectorKernel& kernel, Workspace workspace = nullptr) {
  return vector<kTypes>(kernel, workspace, cpu::prepare_stream);
}

template <Supports kTypes = kActivations>
constexpr OpRows avx512_bf16(std::string_view op, Run run, Workspace workspace = nullptr,
                             Prepare prepare = nullptr) {
  return {{on_x86({"_avx512_bf16", op, supports_avx512_bf16<kTypes>, workspace, prepare, run})}};
}

constexpr OpRows optimizer_step() {
  OpRows rows =
      vector<cpu::supports_update>(variants::optimizer_step(), cpu::update_workspace_bytes);
  for (Kernel& kernel : rows.kernels) kernel.watched_outputs = cpu::watched_states;
  return rows;
}

// What rows of an engine are made of, in the order of Engine.
struct Parts {
  const cpu::GemmEngine* (*gemm)();
  const cpu::ActivationStage* activation;
  const cpu::HeadStage* head;
  Run pack;
};
// consteval, so that without optimization too, nothing refers to parts that are not built.
consteval Parts parts(Engine engine) {
  const Parts in_order[] = {
      {cpu::gemm_amx_bf16, &cpu::avx512_bf16::kActivationStage, &cpu::avx512::kHeadStage,
       cpu::avx512::pack},
      {cpu::gemm_avx512_bf16, &cpu::avx512_bf16::kActivationStage, &cpu::avx512::kHeadStage,
       cpu::avx512::pack},
      {cpu::gemm_avx512, &cpu::avx512::kActivationStage, &cpu::avx512::kHeadStage,
       cpu::avx512::pack},
      {cpu::gemm_avx2, &cpu::avx2::kActivationStage, &cpu::avx2::kHeadStage, cpu::avx2::pack},
      {cpu::gemm_portable, &cpu::portable::kActivationStage, &cpu::portable::kHeadStage,
       cpu::portable::pack},
      {cpu::gemm_int8_avx512_vnni, &cpu::avx512::kActivationStage, &cpu::avx512::kHeadStage,
       cpu::avx512::pack},
      {cpu::gemm_int8_avx_vnni, &cpu::avx2::kActivationStage, &cpu::avx2::kHeadStage,
       cpu::avx2::pack},
      {cpu::gemm_int8_avx2, &cpu::avx2::kActivationStage, &cpu::avx2::kHeadStage, cpu::avx2::pack},
      {cpu::gemm_int8_portable, &cpu::portable::kActivationStage, &cpu::portable::kHeadStage,
       cpu::portable::pack},
  };
  return in_order[static_cast<std::size_t>(engine)];
}
template <Engine E>
using ActivationRows = cpu::LinearActivationRows<parts(E).gemm, parts(E).activation>;
template <Engine E>
using HeadRows = cpu::HeadLossRows<parts(E).gemm, parts(E).head>;

// Which function of the rows of an engine runs an op.
constexpr auto kForward = [](auto rows) -> Run { return rows.forward; };
constexpr auto kInputGradient = [](auto rows) -> Run { return rows.input_gradient; };
constexpr auto kWeightGradient = [](auto rows) -> Run { return rows.weight_gradient; };
constexpr auto kWeightGradientSquares = [](auto rows) -> Run {
  return rows.weight_gradient_squares;
};
constexpr auto kGradient = [](auto rows) -> Run { return rows.gradient; };
constexpr auto kRun = [](auto rows) -> Run { return rows.run; };

// A row for engine E, of the functions of Rows<E>. It refuses where E is not built.
template <Engine E, template <Engine> class Rows, class RunOf>
constexpr Kernel engine_row(std::string_view variant, std::string_view op, RunOf run_of,
                            Prepare prepare) {
  const Rows<E> rows;
  Kernel kernel{variant, op, rows.supports, rows.workspace_bytes, prepare, run_of(rows)};
  if constexpr (requires { rows.slicing_bytes; }) kernel.slicing_bytes = rows.slicing_bytes;
  return kernel;
}

// A row for each engine but those of int8 products.
template <template <Engine> class Rows, class RunOf>
constexpr OpRows float_engines(std::string_view op, RunOf run_of, Prepare prepare) {
  return {{engine_row<Engine::kAmxBf16, Rows>("_amx_bf16", op, run_of, prepare),
           engine_row<Engine::kAvx512Bf16, Rows>("_avx512_bf16", op, run_of, prepare),
           engine_row<Engine::kAvx512, Rows>("_avx512", op, run_of, prepare),
           engine_row<Engine::kAvx2, Rows>("_avx2", op, run_of, prepare),
           engine_row<Engine::kPortable, Rows>("_portable", op, run_of, prepare)}};
}
// A row for each engine.
template <template <Engine> class Rows, class RunOf>
constexpr OpRows engines(std::string_view op, RunOf run_of, Prepare prepare = cpu::prepare_stream) {
  OpRows rows = float_engines<Rows>(op, run_of, prepare);
  rows.kernels[5] =
      engine_row<Engine::kInt8Avx512Vnni, Rows>("_int8_avx512_vnni", op, run_of, prepare);
  rows.kernels[6] = engine_row<Engine::kInt8AvxVnni, Rows>("_int8_avx_vnni", op, run_of, prepare);
  rows.kernels[7] = engine_row<Engine::kInt8Avx2, Rows>("_int8_avx2", op, run_of, prepare);
  rows.kernels[8] = engine_row<Engine::kInt8Portable, Rows>("_int8_portable", op, run_of, prepare);
  return rows;
}
// A row for each engine that has products with sparse weights.
template <class RunOf>
constexpr OpRows sparse(std::string_view op, RunOf run_of, Prepare prepare) {
  return {{engine_row<Engine::kAvx512Bf16, SparseRows>("_avx512_bf16", op, run_of, prepare),
           engine_row<Engine::kAvx512, SparseRows>("_avx512", op, run_of, prepare),
           engine_row<Engine::kAvx2, SparseRows>("_avx2", op, run_of, prepare),
           engine_row<Engine::kPortable, SparseRows>("_portable", op, run_of, prepare)}};
}
// Rows for unstructured weights.
constexpr OpRows csr(std::string_view op) {
  cpu::VectorKernel kernel = variants::sparse_csr();
  kernel.op = op;
  OpRows rows = vector<supports_csr>(kernel, cpu::sparse_csr_workspace_bytes);
  rows.form = "_csr";
  return rows;
}
// For rows that use more than the engine. Elsewhere than on x86 only portable ones are built.
constexpr OpRows built(OpRows rows) {
  for (Kernel& kernel : rows.kernels)
    if (!kernel.name.ends_with("_portable")) kernel = on_x86(kernel);
  return rows;
}
template <class RunOf>
constexpr OpRows activation(std::string_view op, RunOf run_of) {
  return built(engines<ActivationRows>(op, run_of, nullptr));
}
constexpr OpRows head(std::string_view op) {
  return built(float_engines<HeadRows>(op, kRun, nullptr));
}

// Rows for calls that are cut into slices: see packing_rows.h.
template <template <Engine> class Rows, class RunOf>
struct Slices {
  template <Engine E>
  using Of = cpu::PackingRows<Rows<E>, RunOf{}(Rows<E>{}), parts(E).pack>;
};
template <template <Engine> class Rows, class RunOf>
constexpr OpRows slices(std::string_view op, RunOf) {
  OpRows rows = built(engines<Slices<Rows, RunOf>::template Of>(op, kRun, cpu::prepare_stream));
  rows.form = "_slices";
  return rows;
}

constexpr OpRows kOps[] = {
    stream(variants::activation()),
    stream(variants::activation_gradient()),
    stream<kAnyFloats>(variants::add()),
    stream<kAnyFloats>(variants::add_norm_statistics()),
    stream<kAnyFloats>(variants::add_rms_norm(), cpu::paired_weight_workspace_bytes),
    scalar<supports_panels<Also::kF16>>("all_gather", cpu::exchange_alone),
    scalar<supports_panels<Also::kF16>>("all_reduce", cpu::exchange_alone),
    avx512_bf16("attention", cpu::avx512_bf16::attention, cpu::attention_pairs_workspace_bytes),
    vector(variants::attention(), cpu::attention_workspace_bytes),
    avx512_bf16("attention_gradient", cpu::avx512_bf16::attention_gradient,
                cpu::attention_gradient_pairs_workspace_bytes),
    vector(variants::attention_gradient(), cpu::attention_gradient_workspace_bytes),
    scalar<kAnyFloats>("cache_write", cpu::cache_write),
    vector<kAnyFloats>(variants::cast()),
    vector(variants::clamp()),
    vector(variants::clamp_gradient()),
    scalar("clip_factor", cpu::clip_factor),
    vector(variants::cross_entropy(), cpu::row_doubles_workspace_bytes),
    vector(variants::cross_entropy_gradient()),
    avx512_bf16<supports_int8>("dequantize", cpu::avx512_bf16::dequantize, nullptr,
                               cpu::prepare_stream),
    vector<supports_int8>(variants::dequantize(), nullptr, cpu::prepare_stream),
    scalar("dispatch_map", cpu::dispatch_map),
    stream(variants::dropout()),
    scalar<kAnyFloats>("embedding", cpu::embedding, nullptr, cpu::prepare_stream),
    vector(variants::embedding_weight_gradient(), cpu::embedding_gradient_workspace_bytes),
    vector(variants::expert_bias()),
    vector(variants::expert_bias_router_gradient()),
    vector(variants::expert_bias_weight_gradient(), cpu::expert_bias_workspace_bytes),
    vector<supports_grid>(variants::fake_quantize()),
    vector(variants::fake_quantize_tokens()),
    scalar<kF64Outputs>("fill", cpu::fill),
    vector(variants::gate_rows()),
    vector(variants::gate_rows_gradient()),
    scalar<kF64Inputs>("global_norm", cpu::global_norm),
    engines<LinearRows>("grouped_linear", kForward),
    activation("grouped_linear_activation", kForward),
    activation("grouped_linear_activation_gradient", kGradient),
    slices<ActivationRows>("grouped_linear_activation_gradient", kGradient),
    activation("grouped_linear_activation_gradient_with_weights", kGradient),
    slices<ActivationRows>("grouped_linear_activation_gradient_with_weights", kGradient),
    activation("grouped_linear_activation_with_codes", kForward),
    activation("grouped_linear_activation_with_products", kForward),
    engines<LinearRows>("grouped_linear_input_gradient", kInputGradient),
    slices<LinearRows>("grouped_linear_input_gradient", kInputGradient),
    engines<LinearManyRows>("grouped_linear_many", kForward),
    engines<LinearManyRows>("grouped_linear_many_input_gradient", kInputGradient),
    slices<LinearManyRows>("grouped_linear_many_input_gradient", kInputGradient),
    engines<LinearManyRows>("grouped_linear_many_weight_gradient", kWeightGradient),
    engines<LinearRows>("grouped_linear_weight_gradient", kWeightGradient),
    engines<LinearRows>("grouped_linear_weight_gradient_squares", kWeightGradientSquares),
    sparse("grouped_sparse_linear", kForward, nullptr),
    csr("grouped_sparse_linear"),
    sparse("grouped_sparse_linear_input_gradient", kForward, nullptr),
    csr("grouped_sparse_linear_input_gradient"),
    sparse("grouped_sparse_linear_weight_gradient", kWeightGradient, cpu::prepare_stream),
    head("head_log_probabilities"),
    head("head_loss"),
    built(engines<HeadRows>("head_loss_with_gradient", kRun, nullptr)),
    built(engines<HeadRows>("head_loss_with_input_gradient", kRun, nullptr)),
    vector(variants::join_heads()),
    vector(variants::join_heads_gradient()),
    vector(variants::label_log_probabilities()),
    stream(variants::layer_norm(), cpu::paired_weight_and_bias_workspace_bytes),
    stream(variants::layer_norm_input_gradient(), cpu::paired_weight_workspace_bytes),
    vector(variants::layer_norm_weight_gradient(), cpu::column_partials_workspace_bytes),
    engines<LinearRows>("linear", kForward),
    activation("linear_activation", kForward),
    activation("linear_activation_gradient", kGradient),
    activation("linear_activation_with_codes", kForward),
    activation("linear_activation_with_products", kForward),
    engines<LinearRows>("linear_input_gradient", kInputGradient),
    engines<LinearManyRows>("linear_many", kForward),
    engines<LinearManyRows>("linear_many_input_gradient", kInputGradient),
    engines<LinearManyRows>("linear_many_weight_gradient", kWeightGradient),
    engines<LinearRows>("linear_weight_gradient", kWeightGradient),
    engines<LinearRows>("linear_weight_gradient_squares", kWeightGradientSquares),
    scalar("load_balancing_loss", cpu::load_balancing_loss),
    scalar("load_balancing_loss_gradient", cpu::load_balancing_loss_gradient),
    vector<kAnyFloats>(variants::norm_statistics()),
    optimizer_step(),
    vector<supports_packing>(variants::pack()),
    vector<supports_sparse_packing>(variants::pack_sparse()),
    scalar<kAnyFloats>("permute", cpu::permute, nullptr, cpu::prepare_stream),
    stream<kAnyFloats>(variants::permute_gradient()),
    vector<supports_int8>(variants::quantize()),
    scalar<supports_panels<Also::kF16>>("reduce_scatter", cpu::exchange_alone),
    scalar<supports_panels<Also::kF16>>("reload", cpu::reload),
    scalar<kAnyFloats>("reshape", cpu::reload),
    stream<kAnyFloats>(variants::rms_norm(), cpu::paired_weight_workspace_bytes),
    stream<kAnyFloats>(variants::rms_norm_input_gradient(), cpu::paired_weight_workspace_bytes),
    vector<kAnyFloats>(variants::rms_norm_weight_gradient(), cpu::column_partials_workspace_bytes),
    stream<kAnyFloats>(variants::rope()),
    stream<kAnyFloats>(variants::rope_pair(), cpu::rope_pair_workspace_bytes),
    scalar("rope_table", cpu::rope_table),
    scalar("route_sort", cpu::route_sort, cpu::route_sort_workspace_bytes),
    vector(variants::router(), cpu::router_workspace_bytes),
    vector(variants::router_gradient()),
    vector(variants::router_z_loss(), cpu::row_doubles_workspace_bytes),
    vector(variants::router_z_loss_gradient()),
    vector(variants::scale()),
    vector(variants::scale_by()),
    scalar("sequence_balance_loss", cpu::sequence_balance_loss,
           cpu::sequence_balance_loss_workspace_bytes),
    scalar("sequence_balance_loss_gradient", cpu::sequence_balance_loss_gradient),
    vector(variants::sinks_gradient(), cpu::column_partials_workspace_bytes),
    scalar<supports_mask>("sparse_index", cpu::sparse_index),
    sparse("sparse_linear", kForward, nullptr),
    csr("sparse_linear"),
    sparse("sparse_linear_input_gradient", kForward, nullptr),
    csr("sparse_linear_input_gradient"),
    sparse("sparse_linear_weight_gradient", kWeightGradient, cpu::prepare_stream),
    vector<supports_panels<Also::kNone, Also::kF64>>(variants::sum_leaves()),
    vector<kAnyFloats>(variants::sum_rows(), cpu::column_partials_workspace_bytes),
    vector<supports_squares>(variants::sum_squares(), cpu::sum_squares_workspace_bytes),
    vector<supports_panels<Also::kNone, Also::kF64>>(variants::sum_squares_of_parts(),
                                                     cpu::sum_squares_workspace_bytes),
    stream<kAnyFloats>(variants::unpermute()),
    vector<kAnyFloats>(variants::unpermute_gradient()),
};

struct Table {
  static constexpr std::size_t kMost = kMostRows * std::size(kOps);
  std::array<Kernel, kMost> rows{};
  std::array<std::array<char, 80>, kMost> names{};
  std::size_t size = 0;

  constexpr Table() {
    for (const auto& [kernels, form] : kOps)
      for (const Kernel& kernel : kernels) {
        if (kernel.op.empty()) continue;
        auto end = names[size].begin();
        for (const std::string_view part : {std::string_view("cpu:"), kernel.op, form, kernel.name})
          end = std::copy(part.begin(), part.end(), end);
        rows[size] = kernel;
        rows[size].name = names[size].data();
        ++size;
      }
  }
};
constexpr Table kTable;

}  // namespace

std::span<const Kernel> cpu_table() { return {kTable.rows.data(), kTable.size}; }

}  // namespace anabatic::kernels
