// SPDX-License-Identifier: Apache-2.0
// linear and grouped_linear with their gradients: a linear is one group of all rows.
#include <fmt/core.h>

#include "base/error.h"
#include "base/philox.h"
#include "base/rounding.h"
#include "kernels/cpu/gemm_tasks.h"
#include "kernels/cpu/linear_products.h"
#include "kernels/cpu/linear_rows.h"
#include "spec/product_bias.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

// Workspace of a Gemm of all groups' rows, or in a weight gradient of their whole depth.
Int gemm_bytes(const GemmEngine& engine, const Gemm& whole, Int num_groups, int num_threads) {
  return threads_bytes(engine, whole, num_threads) + shared_bytes(engine, whole, num_groups);
}

const std::int32_t* offsets_of(const Arguments& arguments, const TensorType& weight) {
  return is_grouped(weight) ? arguments.inputs[2].as<std::int32_t>() : nullptr;
}

// The row map of a gathered product.
RowIndex rows_index(const Arguments& arguments) {
  constexpr std::size_t kRowMap = 3;
  if (arguments.inputs.size() <= kRowMap || !arguments.attributes->contains("top_k")) return {};
  return row_index(arguments.inputs[kRowMap].as<std::int32_t>(),
                   spec::get_int(*arguments.attributes, "top_k"));
}

// The bias of the first group; null where the product has none.
const float* bias_of(const Arguments& arguments) {
  constexpr std::size_t kOfDense = 2;
  if (is_grouped(*arguments.inputs[1].type)) {
    const auto biases = spec::biases_of(arguments.inputs, *arguments.attributes);
    return biases.empty() ? nullptr : biases[0].as<float>();
  }
  return arguments.inputs.size() > kOfDense ? arguments.inputs[kOfDense].as<float>() : nullptr;
}

// Forward and input gradient: a group's rows of A and C, its matrix of the stack, its bias.
void run_by_rows(const GemmEngine& engine, const Product& p, const Gemm& shape, const std::byte* a,
                 std::byte* c, const std::int32_t* offsets, const float* bias,
                 const Arguments& arguments) {
  const RowIndex index = rows_index(arguments);
  const auto make = [&](Int group) {
    const Rows rows = rows_of(offsets, group, p.rows);
    Gemm gemm = shape;
    gemm.rows = rows.end - rows.begin;
    begin_at(gemm.a, a, index, rows.begin, shape.a.row_stride);
    set_matrix(gemm.b, arguments.inputs[1], group);
    gemm.c = c + rows.begin * shape.c_stride * size_bytes(shape.c_dtype);
    if (bias != nullptr) gemm.bias = bias + group * p.out;
    return gemm;
  };
  run_gemms(engine, shape, p.groups, make, *arguments.launch.team, arguments.workspace);
}

void run_forward(const GemmEngine& engine, const Arguments& call) {
  const Arguments arguments = without_prologue(call);
  const Prologue prologue(engine, call);
  const TensorView &x = arguments.inputs[0], &weight = arguments.inputs[1];
  const TensorView& y = arguments.outputs[0];
  Product p = product(*x.type, *weight.type, *y.type);
  p.fallback = fallback_of(*arguments.attributes);
  Gemm shape = counted(forward_shape(p), arguments.counts);
  prologue.set(shape.a);
  run_by_rows(engine, p, shape, x.data, y.data, offsets_of(arguments, *weight.type),
              bias_of(arguments), arguments);
}

void run_input_gradient(const GemmEngine& engine, const Arguments& arguments) {
  const TensorView &dy = arguments.inputs[0], &weight = arguments.inputs[1];
  const TensorView& dx = arguments.outputs[0];
  const Product p = product(*dx.type, *weight.type, *dy.type);
  run_by_rows(engine, p, counted(input_gradient_shape(p), arguments.counts), dy.data, dx.data,
              offsets_of(arguments, *weight.type), nullptr, arguments);
}

// Entries of Gemm::squares.
Int num_tiles(const GemmEngine& engine, const Gemm& gemm) {
  const Blocking size = engine.blocking(gemm);
  return ceil_div(gemm.rows, size.row_step) * ceil_div(gemm.columns, size.column_step);
}

// `squares`: null, or an entry for each tile of each group.
void run_weight_gradient(const GemmEngine& engine, const Arguments& arguments,
                         double* squares = nullptr) {
  const TensorView &x = arguments.inputs[0], &dy = arguments.inputs[1];
  const TensorView& dw = arguments.outputs[0];
  Product p = weight_gradient_product(*x.type, *dw.type, *dy.type);
  p.fallback = fallback_of(*arguments.attributes);
  const std::int32_t* offsets = offsets_of(arguments, *dw.type);
  const bool accumulate = arguments.accumulate[0];
  Gemm shape = weight_gradient_shape(p);
  const Prologue prologue(engine, arguments);
  prologue.set(p.is_packed ? shape.a : shape.b);
  const RowIndex index = rows_index(arguments);
  const bool gathers_x =
      index.data != nullptr && spec::get_string(*arguments.attributes, "gathered") == "x";
  const Int tiles = num_tiles(engine, shape), matrix = matrix_elements(*dw.type);
  const Int before = spec::get_int_or(*arguments.attributes, "first_row", 0) * shape.c_stride +
                     spec::get_int_or(*arguments.attributes, "first_column", 0);
  const bool streams = arguments.prepared != nullptr && !accumulate && p.column_step == 1 &&
                       shape.c_dtype == DType::kFloat32 && shape.c_stride % kPanelColumns == 0 &&
                       matrix % kPanelColumns == 0 &&
                       reinterpret_cast<std::uintptr_t>(dw.data) % 64 == 0;
  const auto make = [&](Int group) {
    const Rows rows = rows_of(offsets, group, p.rows);
    Gemm gemm = shape;
    gemm.depth = rows.end - rows.begin;
    if (gemm.depth == 0 && accumulate && squares == nullptr) gemm.rows = 0;
    begin_at(p.is_packed ? gemm.b : gemm.a, dy.data, gathers_x ? RowIndex{} : index, rows.begin,
             p.out);
    begin_at(p.is_packed ? gemm.a : gemm.b, x.data, gathers_x ? index : RowIndex{}, rows.begin,
             p.in);
    gemm.c = dw.data + (group * matrix + before) * size_bytes(p.weight);
    gemm.accumulate = accumulate;
    gemm.streams = streams;
    if (squares != nullptr) gemm.squares = squares + group * tiles;
    return gemm;
  };
  run_gemms(engine, shape, p.groups, make, *arguments.launch.team, arguments.workspace);
}

// The Gemms' part of the workspace; the sums of the tiles follow it.
Int bytes_before_squares(const GemmEngine& engine, const Gemm& shape, Int num_groups,
                         int num_threads) {
  return round_up(gemm_bytes(engine, shape, num_groups, num_threads), 64);
}

void run_weight_gradient_squares(const GemmEngine& engine, const Arguments& arguments) {
  Product p =
      product(*arguments.inputs[0].type, *arguments.outputs[0].type, *arguments.inputs[1].type);
  p.fallback = fallback_of(*arguments.attributes);
  const Gemm shape = weight_gradient_shape(p);
  auto* squares = reinterpret_cast<double*>(
      arguments.workspace +
      bytes_before_squares(engine, shape, p.groups, arguments.launch.team->num_threads()));
  run_weight_gradient(engine, arguments, squares);
  const Int count = p.groups * num_tiles(engine, shape);
  double sum = 0;
  for (Int i = 0; i < count; ++i) sum += squares[i];
  *arguments.outputs[1].as<double>() = sum;
}

const spec::ProductForm& form_of(const spec::Problem& problem) {
  const spec::ProductForm* form = spec::find_product(text(problem.op));
  ANABATIC_CHECK(form != nullptr, "[linear] '{}' is no product", text(problem.op));
  return *form;
}

Product product_of(const spec::Problem& problem) {
  switch (form_of(problem).role) {
    case spec::ProductRole::kForward:
      break;
    case spec::ProductRole::kInputGradient:
      return product(problem.outputs[0], problem.inputs[1], problem.inputs[0]);
    case spec::ProductRole::kWeightGradient:
      return weight_gradient_product(problem.inputs[0], problem.outputs[0], problem.inputs[1]);
  }
  return product(problem.inputs[0], problem.inputs[1], problem.outputs[0]);
}

Gemm shape_of(const spec::Problem& problem, const Product& p) {
  switch (form_of(problem).role) {
    case spec::ProductRole::kForward:
      break;
    case spec::ProductRole::kInputGradient:
      return input_gradient_shape(p);
    case spec::ProductRole::kWeightGradient:
      return weight_gradient_shape(p);
  }
  return forward_shape(p);
}

Int workspace(const GemmEngine& engine, const spec::Problem& problem) {
  Product p = product_of(problem);
  p.fallback = fallback_of(*problem.attributes);
  const Gemm shape = shape_of(problem, p);
  const int num_threads = problem.device->num_threads;
  if (!form_of(problem).sums_squares) return gemm_bytes(engine, shape, p.groups, num_threads);
  return bytes_before_squares(engine, shape, p.groups, num_threads) +
         p.groups * num_tiles(engine, shape) * Int{sizeof(double)};
}

}  // namespace

Prologue::Prologue(const GemmEngine& engine, const Arguments& arguments)
    : norm_(norm_of_x(arguments)), drop_(engine.drop) {
  if (spec::drops_x(*arguments.attributes))
    draws_.emplace(arguments.inputs.back().as<const std::int32_t>(),
                   stream_of(spec::get_string(*arguments.attributes, spec::kDropoutSite)),
                   spec::get_double(*arguments.attributes, spec::kDropoutRate));
}

Support supports_prologue(const spec::Problem& problem) {
  if (spec::num_prologue_inputs(*problem.attributes) == 0) return yes();
  if (problem.inputs[0].dtype == DType::kFloat16) return no("a norm or dropout of rows in f16");
  return spec::drops_x(*problem.attributes) && is_int8_product(problem)
             ? no("dropout of rows of an int8 product")
             : yes();
}

Support supports_linear_types(const spec::Problem& problem) {
  if (Support prologue = supports_prologue(problem); !prologue) return prologue;
  const bool has_squares = form_of(problem).sums_squares;
  for (const auto types : {problem.inputs, problem.outputs})
    for (const TensorType& type : types) {
      if (type.layout != kRowMajor && !is_panels(type.layout))
        return no(fmt::format("expected row-major or packed operands, got {}", to_string(type)));
      const bool is_known = type.is_quantized()
                                ? type.value_dtype() == DType::kBFloat16
                                : type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16 ||
                                      type.dtype == DType::kFloat16 || type.dtype == DType::kInt32;
      const bool is_sum =
          has_squares && type.dtype == DType::kFloat64 && &type == &problem.outputs.back();
      if (!is_known && !is_sum)
        return no(fmt::format("expected f32, bf16 or f16, got {}", to_string(type.dtype)));
    }
  return yes();
}

Support supports_engine(const GemmEngine* engine, const spec::Problem& problem) {
  if (engine == nullptr) return no("not in this build");
  if (!usable(engine, *problem.device)) return no(fmt::format("the device has no {}", engine->isa));
  if (is_int8_product(problem) == (engine->coding == nullptr))
    return no(engine->coding == nullptr ? "an int8 product" : "no int8 product");
  return yes();
}

template <Engine E>
Support LinearRows<E>::supports(const spec::Problem& problem) {
  if (problem.attributes->contains("slices")) return no("cut into slices");
  if (Support types = supports_linear_types(problem); !types) return types;
  if (takes_bf16_alone(E)) {
    if (problem.inputs[0].dtype != DType::kBFloat16 ||
        problem.inputs[1].value_dtype() != DType::kBFloat16)
      return no(form_of(problem).role == spec::ProductRole::kWeightGradient
                    ? "expected bf16 x and dy"
                    : "expected bf16 rows and weight");
  }
  return supports_engine(engine_of(E), problem);
}

template <Engine E>
std::int64_t LinearRows<E>::workspace_bytes(const spec::Problem& problem) {
  return workspace(*engine_of(E), problem);
}

template <Engine E>
void LinearRows<E>::forward(const Arguments& arguments) {
  run_forward(*engine_of(E), arguments);
}
template <Engine E>
void LinearRows<E>::input_gradient(const Arguments& arguments) {
  run_input_gradient(*engine_of(E), arguments);
}
template <Engine E>
void LinearRows<E>::weight_gradient(const Arguments& arguments) {
  run_weight_gradient(*engine_of(E), arguments);
}
template <Engine E>
void LinearRows<E>::weight_gradient_squares(const Arguments& arguments) {
  run_weight_gradient_squares(*engine_of(E), arguments);
}

template struct LinearRows<Engine::kAmxBf16>;
template struct LinearRows<Engine::kAvx512Bf16>;
template struct LinearRows<Engine::kAvx512>;
template struct LinearRows<Engine::kAvx2>;
template struct LinearRows<Engine::kPortable>;
template struct LinearRows<Engine::kInt8Avx512Vnni>;
template struct LinearRows<Engine::kInt8AvxVnni>;
template struct LinearRows<Engine::kInt8Avx2>;
template struct LinearRows<Engine::kInt8Portable>;

}  // namespace anabatic::kernels::cpu
