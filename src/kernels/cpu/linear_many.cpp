// SPDX-License-Identifier: Apache-2.0
// Several products of one input, or into one gradient, as one task list. A table of Gemms begins
// the workspace, so a call may have any number of them.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/rounding.h"
#include "kernels/cpu/gemm_tasks.h"
#include "kernels/cpu/linear_products.h"
#include "kernels/cpu/linear_rows.h"
#include "spec/product.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

enum class Form { kForward, kInputGradient, kWeightGradient };

template <Form F>
Int num_products(std::size_t num_inputs, std::size_t num_outputs) {
  return static_cast<Int>(F == Form::kInputGradient ? num_inputs / 2 : num_outputs);
}

// Where the operands of a form's p-th product are among inputs and outputs.
struct Places {
  std::size_t x, weight, y;
  bool x_is_output, weight_is_output, y_is_output;
};
template <Form F>
Places places(Int p) {
  const auto i = static_cast<std::size_t>(p);
  if (F == Form::kForward) return {0, 1 + i, i, false, false, true};
  if (F == Form::kInputGradient) return {0, 2 * i + 1, 2 * i, true, false, false};
  return {0, i, 1 + i, false, true, false};
}

// Lists hold types or views.
template <class List>
const auto& operand(const List& inputs, const List& outputs, bool is_output, std::size_t i) {
  return is_output ? outputs[i] : inputs[i];
}

template <Form F>
Product product_of(const spec::Problem& problem, Int p) {
  const Places at = places<F>(p);
  Product result = product(operand(problem.inputs, problem.outputs, at.x_is_output, at.x),
                           operand(problem.inputs, problem.outputs, at.weight_is_output, at.weight),
                           operand(problem.inputs, problem.outputs, at.y_is_output, at.y));
  result.fallback = fallback_of(*problem.attributes);
  return result;
}

template <Form F>
Gemm shape_of(const Product& p) {
  if (F == Form::kForward) return forward_shape(p);
  if (F == Form::kInputGradient) return input_gradient_shape(p);
  return weight_gradient_shape(p);
}

// Gemms of one list read A in one way. Weight gradients read it by columns, unless it is a column.
bool reads_rows(const Gemm& gemm) { return gemm.a.column_stride == 1; }

void enclose(std::optional<Gemm>& bound, const Gemm& gemm) {
  if (!bound) bound = gemm;
  Gemm& largest = *bound;
  largest.rows = std::max(largest.rows, gemm.rows);
  largest.columns = std::max(largest.columns, gemm.columns);
  largest.depth = std::max(largest.depth, gemm.depth);
}

// An input gradient is one Gemm for each group; other products are one for each group and weight.
template <Form F>
struct TableSize {
  Int gemms, further;  // entries
  TableSize(Int groups, Int count)
      : gemms(F == Form::kInputGradient ? groups : groups * count),
        further(F == Form::kInputGradient ? groups * (count - 1) : 0) {}
  Int further_at() const { return gemms * static_cast<Int>(sizeof(Gemm)); }
  Int bytes() const {
    return round_up(further_at() + further * static_cast<Int>(sizeof(Operands)), 64);
  }
};

// Bytes of the products' operands in int8, each once.
template <Form F>
Int int8_operands_bytes(const spec::Problem& problem, Int count) {
  const Int groups = product_of<F>(problem, 0).groups;
  const TableSize<F> size(groups, count);
  Int bytes = Int8OperandCoding::table_bytes(size.gemms, F == Form::kInputGradient ? count : 1);
  for (Int p = 0; p < count; ++p) {
    const Product shape = product_of<F>(problem, p);
    const Gemm gemm = shape_of<F>(shape);
    // x is in common, of which a packed weight gradient is the transpose.
    const bool left_is_x = F == Form::kForward || (F == Form::kWeightGradient && shape.is_packed);
    if (p == 0 || !left_is_x) bytes += int8_operand_bytes(gemm, Side::kLeft, groups);
    if (F == Form::kWeightGradient && (p == 0 || left_is_x))
      bytes += int8_operand_bytes(gemm, Side::kRight, groups);
  }
  return bytes;
}

template <Form F>
Int workspace(const GemmEngine& engine, const spec::Problem& problem) {
  const Int count = num_products<F>(problem.inputs.size(), problem.outputs.size());
  std::optional<Gemm> largest[2];
  for (Int p = 0; p < count; ++p) {
    const Gemm gemm = shape_of<F>(product_of<F>(problem, p));
    enclose(largest[reads_rows(gemm) ? 1 : 0], gemm);
  }
  const std::vector<Operands> further(static_cast<std::size_t>(count));
  Int most = 0;
  for (std::optional<Gemm>& gemm : largest) {
    if (!gemm) continue;
    if (F == Form::kInputGradient) {
      gemm->further = further.data();
      gemm->num_further = count - 1;
    }
    most = std::max(most, threads_bytes(engine, *gemm, problem.device->num_threads));
  }
  if (engine.coding != nullptr) most += int8_operands_bytes<F>(problem, count);
  return TableSize<F>(product_of<F>(problem, 0).groups, count).bytes() + most;
}

Int workspace(const GemmEngine& engine, const spec::Problem& problem) {
  switch (spec::find_product(text(problem.op))->role) {
    case spec::ProductRole::kForward:
      return workspace<Form::kForward>(engine, problem);
    case spec::ProductRole::kInputGradient:
      return workspace<Form::kInputGradient>(engine, problem);
    case spec::ProductRole::kWeightGradient:
      break;
  }
  return workspace<Form::kWeightGradient>(engine, problem);
}

// The Gemm of one group and the p-th weight.
template <Form F>
Gemm gemm_of(const Arguments& args, const Prologue& prologue, Int p, Int group,
             const std::int32_t* offsets) {
  const Places at = places<F>(p);
  const TensorView& x = operand(args.inputs, args.outputs, at.x_is_output, at.x);
  const TensorView& weight = operand(args.inputs, args.outputs, at.weight_is_output, at.weight);
  const TensorView& y = operand(args.inputs, args.outputs, at.y_is_output, at.y);
  Product shape = product(*x.type, *weight.type, *y.type);
  shape.fallback = fallback_of(*args.attributes);
  const Rows rows = rows_of(offsets, group, shape.rows);
  std::byte* x_rows = x.data + rows.begin * shape.in * size_bytes(shape.x);
  std::byte* y_rows = y.data + rows.begin * shape.out * size_bytes(shape.y);
  Gemm gemm = shape_of<F>(shape);
  if (F == Form::kWeightGradient) {
    gemm.depth = rows.end - rows.begin;
    gemm.accumulate = args.accumulate[at.weight];
    if (gemm.depth == 0 && gemm.accumulate) gemm.rows = 0;
    gemm.a.data = y_rows;
    gemm.b.data = x_rows;
    prologue.set(gemm.b);
    gemm.c = weight.data + group * matrix_elements(*weight.type) * size_bytes(shape.weight);
    return gemm;
  }
  gemm.rows = rows.end - rows.begin;
  gemm.a.data = F == Form::kForward ? x_rows : y_rows;
  if (F == Form::kForward) prologue.set(gemm.a);
  set_matrix(gemm.b, weight, group);
  gemm.c = F == Form::kForward ? y_rows : x_rows;
  return gemm;
}

// Runs all Gemms that read A by rows, or all others, as one list.
template <Form F>
void run_list(const GemmEngine& engine, const Arguments& args, bool by_rows) {
  const Int count = num_products<F>(args.inputs.size(), args.outputs.size());
  const TensorType& weight =
      *operand(args.inputs, args.outputs, F == Form::kWeightGradient, places<F>(0).weight).type;
  const Int groups = is_grouped(weight) ? weight.dim(0) : 1;
  const std::int32_t* offsets =
      is_grouped(weight) ? args.inputs.back().as<const std::int32_t>() : nullptr;
  const Prologue prologue(engine, args);
  const TableSize<F> size(groups, count);
  auto* table = reinterpret_cast<Gemm*>(args.workspace);
  auto* further = reinterpret_cast<Operands*>(args.workspace + size.further_at());
  std::optional<Gemm> largest;
  Int num_gemms = 0;
  // By group, for the weights of a group read the same rows. Weight gradients go by weight, for
  // each is written as one stream.
  constexpr bool kByWeight = F == Form::kWeightGradient;
  for (Int i = 0; i < groups * count; ++i) {
    const Int group = kByWeight ? i % groups : i / count, p = kByWeight ? i / groups : i % count;
    Gemm gemm = gemm_of<F>(args, prologue, p, group, offsets);
    if (reads_rows(gemm) != by_rows) continue;
    if (F == Form::kInputGradient) {
      Operands* others = further + group * (count - 1);
      gemm.further = others;
      gemm.num_further = count - 1;
      if (p > 0) {
        enclose(largest, gemm);
        std::construct_at(others + p - 1, Operands{.a = gemm.a, .b = gemm.b, .depth = gemm.depth});
        continue;
      }
    }
    enclose(largest, gemm);
    std::construct_at(table + num_gemms++, gemm);
  }
  if (!largest) return;
  if (!kByWeight) largest->counts = args.counts;
  run_gemms(
      engine, *largest, num_gemms, [&](Int i) -> const Gemm& { return table[i]; },
      *args.launch.team, args.workspace + size.bytes());
}

template <Form F>
void run(const GemmEngine& engine, const Arguments& args) {
  run_list<F>(engine, args, true);
  if (F == Form::kWeightGradient) run_list<F>(engine, args, false);
}

// Whether an int8 product has all of its weights in int8 panels.
bool all_in_int8(const spec::Problem& problem) {
  const auto role = spec::find_product(text(problem.op))->role;
  if (role == spec::ProductRole::kWeightGradient) return true;
  const bool is_forward = role == spec::ProductRole::kForward;
  const std::size_t step = is_forward ? 1 : 2,
                    count = is_forward ? problem.outputs.size() : problem.inputs.size() / 2;
  for (std::size_t p = 0; p < count; ++p)
    if (!is_int8_panels(problem.inputs[1 + step * p])) return false;
  return true;
}

}  // namespace

template <Engine E>
Support LinearManyRows<E>::supports(const spec::Problem& problem) {
  if (problem.attributes->contains("slices")) return no("cut into slices");
  if (Support types = supports_linear_types(problem); !types) return types;
  if (takes_bf16_alone(E))
    for (const TensorType& type : spec::without_prologue(problem.inputs, *problem.attributes))
      if (type.dtype == DType::kFloat32 || type.dtype == DType::kFloat16)
        return no("expected bf16 operands");
  const Support support = supports_engine(engine_of(E), problem);
  if (!support || engine_of(E)->coding == nullptr) return support;
  return all_in_int8(problem) ? yes() : no("expected all weights in int8 panels");
}

template <Engine E>
std::int64_t LinearManyRows<E>::workspace_bytes(const spec::Problem& problem) {
  return workspace(*engine_of(E), problem);
}

template <Engine E>
void LinearManyRows<E>::forward(const Arguments& arguments) {
  run<Form::kForward>(*engine_of(E), arguments);
}
template <Engine E>
void LinearManyRows<E>::input_gradient(const Arguments& arguments) {
  run<Form::kInputGradient>(*engine_of(E), arguments);
}
template <Engine E>
void LinearManyRows<E>::weight_gradient(const Arguments& arguments) {
  run<Form::kWeightGradient>(*engine_of(E), arguments);
}

template struct LinearManyRows<Engine::kAmxBf16>;
template struct LinearManyRows<Engine::kAvx512Bf16>;
template struct LinearManyRows<Engine::kAvx512>;
template struct LinearManyRows<Engine::kAvx2>;
template struct LinearManyRows<Engine::kPortable>;
template struct LinearManyRows<Engine::kInt8Avx512Vnni>;
template struct LinearManyRows<Engine::kInt8AvxVnni>;
template struct LinearManyRows<Engine::kInt8Avx2>;
template struct LinearManyRows<Engine::kInt8Portable>;

}  // namespace anabatic::kernels::cpu
