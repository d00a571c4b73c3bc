// SPDX-License-Identifier: Apache-2.0
// Products with an activation, or its gradient, on each block while it is in cache. The activation
// reads products rounded to their dtype, so results have the bits of separate ops. A task of the
// forward computes a block of the gate and the same block of up, where there is one. Both are kept,
// not kept, or kept as int8 values.
#include <fmt/core.h>

#include <numeric>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/gemm_tasks.h"
#include "kernels/cpu/linear_products.h"
#include "kernels/cpu/linear_rows.h"
#include "spec/product_bias.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

// Columns of one partial sum of the gradient of a row's weight. Blocks begin at multiples of it. It
// is fixed, so that bits do not depend on the blocks, which depend on the number of threads.
Int segment_of(const GemmEngine& engine, const Gemm& gemm) {
  return 128 % engine.blocking(gemm).column_step == 0 ? 128 : 96;
}

// Blocks of products begin at multiples of it, so that columns of one scale are in
// one block; 0: at any column.
Int column_multiple_of(const GemmEngine& engine, const Gemm& gemm, Int scale_columns) {
  return scale_columns > 0 ? std::lcm(scale_columns, engine.blocking(gemm).column_step) : 0;
}

// Forward and gradient: rows [rows, depth] times a stack of matrices, to [rows, width].
struct Shape {
  Int groups, rows, depth, width;
  DType dtype, weight;  // of rows and products; of the weight's values
  bool is_packed;
  Int scale_columns;           // of a quantised weight; else 0
  int fallback = kNoFallback;  // of x in an int8 product
};

Shape shape_of(const TensorType& x, const TensorType& weight, const TensorType& out,
               const spec::Attributes& attributes) {
  return {.groups = is_grouped(weight) ? weight.dim(0) : 1,
          .rows = out.dim(0),
          .depth = x.dim(1),
          .width = out.dim(1),
          .dtype = out.dtype,
          .weight = weight.value_dtype(),
          .is_packed = is_panels(weight.layout),
          .scale_columns = scale_columns_of(weight),
          .fallback = fallback_of(attributes)};
}

// `transposed`: multiplies by the weight rather than by its transpose, for an input gradient.
Gemm product_of(const Shape& shape, bool transposed) {
  return {.rows = shape.rows,
          .columns = shape.width,
          .depth = shape.depth,
          .a = with_fallback(matrix(nullptr, shape.dtype, shape.depth, 1), shape.fallback),
          .b = {.dtype = shape.weight,
                .row_stride = transposed ? shape.width : 1,
                .column_stride = transposed ? 1 : shape.depth,
                .is_packed = shape.is_packed,
                .scale_columns = shape.scale_columns},
          .c_dtype = shape.dtype,
          .c_stride = shape.width};
}

Gemm normed(Gemm gemm, const LineNorm& norm) {
  gemm.a.norm = norm;
  return gemm;
}

// The workspace: blocks and rows of blocks for each thread, then what all share: that of
// for_blocks, and floats. A null base only counts bytes.
struct Space {
  Space(const GemmEngine& engine, const Gemm& gemm, Int num_groups, Int column_multiple, Int blocks,
        Int num_rows, int num_threads, std::byte* base)
      : base_(base), engine_bytes_(engine.workspace_bytes(gemm)) {
    const Blocking most = bounded_blocking(engine, gemm, column_multiple);
    stride = std::min(most.columns, round_up(std::max<Int>(gemm.columns, 1), kPanelColumns));
    const Int rows = std::min(most.rows, round_up(std::max<Int>(gemm.rows, 1), most.row_step));
    block_bytes = round_up(rows * stride * size_bytes(gemm.c_dtype), 64);
    row_bytes_ = round_up(stride * size_bytes(gemm.c_dtype), 64);
    rows_ = engine_bytes_ + blocks * block_bytes;
    thread_bytes_ = rows_ + num_rows * row_bytes_;
    shared_ = thread_bytes_ * num_threads;
    floats_ = shared_ + round_up(shared_bytes(engine, gemm, num_groups), 64);
  }

  std::byte* engine(int thread) const { return base_ + thread * thread_bytes_; }
  std::byte* block(int thread, Int i) const {
    return engine(thread) + engine_bytes_ + i * block_bytes;
  }
  std::byte* row(int thread, Int i) const { return engine(thread) + rows_ + i * row_bytes_; }
  std::byte* shared() const { return base_ + shared_; }
  float* floats() const { return reinterpret_cast<float*>(base_ + floats_); }
  Int bytes(Int num_floats) const { return floats_ + num_floats * static_cast<Int>(sizeof(float)); }

  Int stride = 0, block_bytes = 0;  // of a block; the stride is in elements from row to row

 private:
  std::byte* base_;
  Int engine_bytes_, row_bytes_ = 0, rows_ = 0, thread_bytes_ = 0, shared_ = 0, floats_ = 0;
};

Int num_rows(const Block& block) { return block.row_end - block.row_begin; }
Int num_columns(const Block& block) { return block.column_end - block.column_begin; }

// Puts a block of C at `data`, with rows `stride` elements apart.
void place_block(Gemm& gemm, const Block& block, std::byte* data, Int stride) {
  gemm.c_stride = stride;
  gemm.c = data - (block.row_begin * stride + block.column_begin) * size_bytes(gemm.c_dtype);
}

// The rows of a group, gathered by `index` if it has data, times the group's matrix of input 1.
Gemm product_of_group(const Arguments& args, const Shape& shape, const Gemm& whole,
                      const std::int32_t* offsets, const RowIndex& index, Int group) {
  const Rows rows = rows_of(offsets, group, shape.rows);
  Gemm gemm = whole;
  gemm.rows = rows.end - rows.begin;
  begin_at(gemm.a, args.inputs[0].data, index, rows.begin, shape.depth);
  set_matrix(gemm.b, args.inputs[1], group);
  return gemm;
}

class Forward {
 public:
  Forward(const GemmEngine& engine, const ActivationStage& stage, const Arguments& args)
      : engine_(engine),
        stage_(stage),
        args_(args),
        activation_(spec::activation_of(*args.attributes)),
        at_{num_operands(activation_)},
        inputs_(spec::without_prologue(spec::without_biases(args.inputs, *args.attributes),
                                       *args.attributes)),
        biases_(spec::biases_of(args.inputs, *args.attributes)),
        shape_(shape_of(*args.inputs[0].type, *args.inputs[1].type, *args.outputs[0].type,
                        *args.attributes)),
        gemm_(normed(counted(product_of(shape_, false), args.counts), norm_of_x(args))),
        scale_columns_(scale_columns_of(*args.outputs.back().type)),
        column_multiple_(column_multiple_of(engine, gemm_, scale_columns_)),
        space_(engine, gemm_, shape_.groups, column_multiple_, at_.num_weights, 0,
               args.launch.team->num_threads(), args.workspace) {
    if (is_grouped(*args.inputs[1].type)) offsets_ = input(at_.offsets())->as<std::int32_t>();
    if (const TensorView* map = input(at_.row_map())) row_map_ = map->as<std::int32_t>();
    if (const TensorView* weights = input(at_.row_weights())) weights_ = weights->as<float>();
    if (const Int top_k = spec::get_int_or(*args.attributes, "top_k", 0); top_k > 0)
      index_ = row_index(row_map_, top_k);
  }

  void run() {
    for_blocks(
        engine_, gemm_, shape_.groups,
        [this](Int group) {
          return product_of_group(args_, shape_, gemm_, offsets_, index_, group);
        },
        *args_.launch.team, column_multiple_, space_.shared(),
        [this](Int group, const Gemm& gemm, const Block& block, int thread) {
          run_block(group, gemm, block, thread);
        });
  }

 private:
  // Null where the call has no such input.
  const TensorView* input(int i) const {
    const auto at = static_cast<std::size_t>(i);
    return at < inputs_.size() ? &inputs_[at] : nullptr;
  }

  // Element (row, column of the block) of output o.
  std::byte* output(std::size_t o, Int row, const Block& block) const {
    return args_.outputs[o].data +
           (row * shape_.width + block.column_begin) * size_bytes(shape_.dtype);
  }

  void run_block(Int group, Gemm gemm, const Block& block, int thread) {
    const Int row = rows_of(offsets_, group, shape_.rows).begin + block.row_begin;
    const bool keeps = args_.outputs.size() > 1 && scale_columns_ == 0;
    const Int stride = keeps ? shape_.width : space_.stride;
    std::byte* products[2] = {nullptr, nullptr};
    const auto num_products = static_cast<std::size_t>(at_.num_weights);
    for (std::size_t i = 0; i < num_products; ++i) {
      products[i] = keeps ? output(1 + i, row, block) : space_.block(thread, static_cast<Int>(i));
      place_block(gemm, block, products[i], stride);
      set_matrix(gemm.b, args_.inputs[1 + i], group);
      if (!biases_.empty()) gemm.bias = biases_[i].as<float>() + group * shape_.width;
      gemm.repeats_a = i > 0;
      engine_.compute(gemm, block, space_.engine(thread));
    }
    stage_.forward({.activation = activation_,
                    .dtype = shape_.dtype,
                    .rows = num_rows(block),
                    .columns = num_columns(block),
                    .gate = products[0],
                    .up = products[1],
                    .operand_stride = stride,
                    .h = output(0, row, block),
                    .h_stride = shape_.width,
                    .row_weights = {.weights = weights_,
                                    .slots = row_map_ != nullptr ? row_map_ + row : nullptr}});
    if (scale_columns_ == 0) return;
    for (std::size_t i = 0; i < num_products; ++i) {
      const TensorView& kept = args_.outputs[1 + i];
      const Int scales = scale_columns(*kept.type);
      stage_.quantize(
          {.dtype = shape_.dtype,
           .rows = num_rows(block),
           .columns = num_columns(block),
           .x = products[i],
           .x_stride = stride,
           .codes = kept.as<std::int8_t>() + row * shape_.width + block.column_begin,
           .codes_stride = shape_.width,
           .scales = kept.scales<BFloat16>() + row * scales + block.column_begin / scale_columns_,
           .scales_stride = scales,
           .scale_columns = scale_columns_,
           .columns_before = 0});
    }
  }

  const GemmEngine& engine_;
  const ActivationStage& stage_;
  const Arguments& args_;
  const spec::Activation activation_;
  const spec::ActivationInputs at_;
  const std::span<const TensorView> inputs_, biases_;
  const Shape shape_;
  const Gemm gemm_;
  const Int scale_columns_, column_multiple_;
  const Space space_;
  const std::int32_t* offsets_ = nullptr;
  const std::int32_t* row_map_ = nullptr;
  const float* weights_ = nullptr;
  RowIndex index_{};  // of rows of x
};

class Gradient {
 public:
  Gradient(const GemmEngine& engine, const ActivationStage& stage, const Arguments& args)
      : engine_(engine),
        stage_(stage),
        args_(args),
        activation_(spec::activation_of(*args.attributes)),
        at_(spec::activation_gradient_inputs(*args.attributes, is_grouped(*args.inputs[1].type))),
        shape_(shape_of(*args.inputs[0].type, *args.inputs[1].type, *args.outputs[0].type,
                        *args.attributes)),
        gemm_(counted(product_of(shape_, true), args.counts)),
        segment_(segment_of(engine, gemm_)),
        operand_dtype_(input(at_.operand(0)).type->is_quantized()
                           ? shape_.dtype
                           : input(at_.operand(0)).type->dtype),
        scale_columns_(scale_columns_of(*input(at_.operand(0)).type)),
        space_(engine, gemm_, shape_.groups, segment_, 1, scale_columns_ > 0 ? at_.num_operands : 0,
               args.launch.team->num_threads(), args.workspace) {
    if (at_.is_grouped) offsets_ = input(at_.offsets()).as<std::int32_t>();
    if (args.attributes->contains("with_activation")) h_ = args.outputs.back().data;
    if (static_cast<std::size_t>(at_.row_map()) == args.inputs.size()) return;
    row_map_ = input(at_.row_map()).as<std::int32_t>();
    weights_ = input(at_.row_weights()).as<float>();
    index_ = row_index(row_map_, columns(input(at_.row_weights())));
    num_segments_ = ceil_div(shape_.width, segment_);
  }

  void run() {
    for_blocks(
        engine_, gemm_, shape_.groups,
        [this](Int group) {
          return product_of_group(args_, shape_, gemm_, offsets_, index_, group);
        },
        *args_.launch.team, segment_, space_.shared(),
        [this](Int group, const Gemm& gemm, const Block& block, int thread) {
          run_block(group, gemm, block, thread);
        });
    if (weights_ == nullptr) return;
    float* dweights = args_.outputs[static_cast<std::size_t>(at_.num_operands)].as<float>();
    const Int first = offsets_[0], num_rows = offsets_[shape_.groups] - first;
    args_.launch.team->for_range(num_rows, row_grain(num_segments_), [&](Int begin, Int end) {
      for (Int row = first + begin; row < first + end; ++row) {
        const float* partials = space_.floats() + row * num_segments_;
        double sum = 0;
        for (Int s = 0; s < num_segments_; ++s) sum += static_cast<double>(partials[s]);
        dweights[row_map_[row]] = static_cast<float>(sum);
      }
    });
  }

 private:
  const TensorView& input(int i) const { return args_.inputs[static_cast<std::size_t>(i)]; }

  // A block of a quantised operand that begins at `row`. Its rows are dequantised into `space`.
  CodesBlock codes_of(const TensorView& operand, Int row, const Block& block,
                      std::byte* space) const {
    const Int scales = scale_columns(*operand.type);
    return {
        .dtype = shape_.dtype,
        .rows = num_rows(block),
        .columns = num_columns(block),
        .x = space,
        .x_stride = 0,
        .codes = operand.as<std::int8_t>() + row * shape_.width + block.column_begin,
        .codes_stride = shape_.width,
        .scales = operand.scales<BFloat16>() + row * scales + block.column_begin / scale_columns_,
        .scales_stride = scales,
        .scale_columns = scale_columns_,
        .columns_before = block.column_begin % scale_columns_};
  }

  void run_block(Int group, Gemm gemm, const Block& block, int thread) {
    const Int row = rows_of(offsets_, group, shape_.rows).begin + block.row_begin;
    const Int first = row * shape_.width + block.column_begin,
              at = first * size_bytes(shape_.dtype),
              operand_at = first * size_bytes(operand_dtype_);
    std::byte* dh = space_.block(thread, 0);
    place_block(gemm, block, dh, space_.stride);
    engine_.compute(gemm, block, space_.engine(thread));
    const bool has_up = at_.num_operands > 1;
    ActivationGradientBlock gradient{
        .activation = activation_,
        .dtype = operand_dtype_,
        .gradient_dtype = shape_.dtype,
        .rows = num_rows(block),
        .columns = num_columns(block),
        .dh = dh,
        .dh_stride = space_.stride,
        .gate = nullptr,
        .up = nullptr,
        .gate_codes = nullptr,
        .up_codes = nullptr,
        .operand_stride = 0,
        .dgate = args_.outputs[0].data + at,
        .dup = has_up ? args_.outputs[1].data + at : nullptr,
        .h = h_ != nullptr ? h_ + operand_at : nullptr,
        .result_stride = shape_.width,
        .row_weights = {.weights = weights_,
                        .slots = weights_ != nullptr ? row_map_ + row : nullptr},
        .partials = weights_ != nullptr
                        ? space_.floats() + row * num_segments_ + block.column_begin / segment_
                        : nullptr,
        .segment = segment_,
        .partial_stride = num_segments_};
    if (scale_columns_ == 0) {
      gradient.gate = input(at_.operand(0)).data + operand_at;
      gradient.up = has_up ? input(at_.operand(1)).data + operand_at : nullptr;
      gradient.operand_stride = shape_.width;
      return stage_.gradient(gradient);
    }
    CodesBlock codes[2];
    for (int i = 0; i < at_.num_operands; ++i)
      codes[i] = codes_of(input(at_.operand(i)), row, block, space_.row(thread, i));
    gradient.gate_codes = &codes[0];
    gradient.gate = codes[0].x;
    if (has_up) {
      gradient.up_codes = &codes[1];
      gradient.up = codes[1].x;
    }
    stage_.gradient(gradient);
  }

  const GemmEngine& engine_;
  const ActivationStage& stage_;
  const Arguments& args_;
  const spec::Activation activation_;
  const spec::ActivationGradientInputs at_;
  const Shape shape_;
  const Gemm gemm_;
  const Int segment_;
  const DType operand_dtype_;  // of gate, up and the activation
  const Int scale_columns_;
  const Space space_;
  const std::int32_t* offsets_ = nullptr;
  std::byte* h_ = nullptr;
  const std::int32_t* row_map_ = nullptr;
  const float* weights_ = nullptr;
  RowIndex index_{};  // of rows of dy
  Int num_segments_ = 0;
};

Shape shape_of(const spec::Problem& problem) {
  return shape_of(problem.inputs[0], problem.inputs[1], problem.outputs[0], *problem.attributes);
}

Gemm forward_product(const spec::Problem& problem) { return product_of(shape_of(problem), false); }

}  // namespace

template <const GemmEngine* (*kEngine)(), const ActivationStage* kStage>
Support LinearActivationRows<kEngine, kStage>::supports(const spec::Problem& problem) {
  if (problem.attributes->contains("slices")) return no("cut into slices");
  const GemmEngine* engine = kEngine();
  if (Support support = supports_engine(engine, problem); !support) return support;
  const DType dtype = problem.inputs[0].dtype;
  if (dtype != DType::kFloat32 && dtype != DType::kBFloat16 && dtype != DType::kFloat16)
    return no(fmt::format("expected f32, bf16 or f16, got {}", to_string(dtype)));
  if (Support prologue = supports_prologue(problem); !prologue) return prologue;
  if (!engine->accepts(dtype, problem.inputs[1].value_dtype()))
    return no("expected bf16 rows and weight");
  for (const std::span<const TensorType> types : {problem.inputs, problem.outputs})
    for (const TensorType& type : types)
      if (type.is_quantized() &&
          (type.value_dtype() != DType::kBFloat16 || dtype == DType::kFloat16))
        return no(fmt::format("expected quantised values in bf16, got {}", to_string(type)));
  if (engine->coding != nullptr &&
      spec::find_product(text(problem.op))->role == spec::ProductRole::kForward)
    for (int i = 0; i < spec::activation_inputs(*problem.attributes).num_weights; ++i)
      if (!is_int8_panels(problem.inputs[static_cast<std::size_t>(1 + i)]))
        return no("expected all weights in int8 panels");
  const Gemm gemm = forward_product(problem);
  if (spec::find_product(text(problem.op))->keeps == spec::KeptProducts::kInt8 &&
      column_multiple_of(*engine, gemm, scale_columns_of(problem.outputs.back())) >
          engine->blocking(gemm).columns)
    return no("the columns that share a scale are wider than a block");
  return yes();
}

namespace {

template <const GemmEngine* (*kEngine)()>
Int forward_workspace(const spec::Problem& problem) {
  const Gemm gemm = forward_product(problem);
  const Int multiple =
      column_multiple_of(*kEngine(), gemm, scale_columns_of(problem.outputs.back()));
  const int num_products = spec::activation_inputs(*problem.attributes).num_weights;
  return Space(*kEngine(), gemm, shape_of(problem).groups, multiple, num_products, 0,
               problem.device->num_threads, nullptr)
      .bytes(0);
}

template <const GemmEngine* (*kEngine)()>
Int gradient_workspace(const spec::Problem& problem) {
  const Shape shape = shape_of(problem);
  const Gemm gemm = product_of(shape, true);
  const Int segment = segment_of(*kEngine(), gemm);
  const spec::Attributes& attributes = *problem.attributes;
  const spec::ActivationGradientInputs at =
      spec::activation_gradient_inputs(attributes, is_grouped(problem.inputs[1]));
  const bool is_weighted = problem.inputs.size() > static_cast<std::size_t>(at.row_map());
  const bool is_quantized = problem.inputs[static_cast<std::size_t>(at.operand(0))].is_quantized();
  return Space(*kEngine(), gemm, shape.groups, segment, 1, is_quantized ? at.num_operands : 0,
               problem.device->num_threads, nullptr)
      .bytes(is_weighted ? shape.rows * ceil_div(shape.width, segment) : 0);
}

}  // namespace

template <const GemmEngine* (*kEngine)(), const ActivationStage* kStage>
Int LinearActivationRows<kEngine, kStage>::workspace_bytes(const spec::Problem& problem) {
  return spec::find_product(text(problem.op))->role == spec::ProductRole::kForward
             ? forward_workspace<kEngine>(problem)
             : gradient_workspace<kEngine>(problem);
}

template <const GemmEngine* (*kEngine)(), const ActivationStage* kStage>
void LinearActivationRows<kEngine, kStage>::forward(const Arguments& args) {
  Forward(*kEngine(), *kStage, args).run();
}

template <const GemmEngine* (*kEngine)(), const ActivationStage* kStage>
void LinearActivationRows<kEngine, kStage>::gradient(const Arguments& args) {
  Gradient(*kEngine(), *kStage, args).run();
}

#ifdef ANABATIC_CPU_X86
template struct LinearActivationRows<gemm_int8_avx512_vnni, &avx512::kActivationStage>;
template struct LinearActivationRows<gemm_int8_avx_vnni, &avx2::kActivationStage>;
template struct LinearActivationRows<gemm_int8_avx2, &avx2::kActivationStage>;
template struct LinearActivationRows<gemm_amx_bf16, &avx512_bf16::kActivationStage>;
template struct LinearActivationRows<gemm_avx512_bf16, &avx512_bf16::kActivationStage>;
template struct LinearActivationRows<gemm_avx512, &avx512::kActivationStage>;
template struct LinearActivationRows<gemm_avx2, &avx2::kActivationStage>;
#endif
template struct LinearActivationRows<gemm_int8_portable, &portable::kActivationStage>;
template struct LinearActivationRows<gemm_portable, &portable::kActivationStage>;

}  // namespace anabatic::kernels::cpu
