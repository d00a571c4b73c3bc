// SPDX-License-Identifier: Apache-2.0
// Int8 products of a head with its loss (ARCHITECTURE.md, "int8 products"). Exponentials are u8
// values. The label's own term is not one of them: bf16 operands give it, in f32.
#include "kernels/cpu/head/head_int8.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/head/head_call.h"
#include "kernels/cpu/int8/coding.h"

namespace anabatic::kernels::cpu::head {

Int8StepWeights::Int8StepWeights(std::byte* base, Int num_classes, Int width) {
  const auto shape = [](Int lines, Int depth) {
    return Int8LinesShape{.lines = lines,
                          .depth = depth,
                          .in_panels = true,
                          .has_compensation = true,
                          .has_second = false};
  };
  const Int8LinesShape of_classes = shape(num_classes, width),
                       of_columns = shape(width, num_classes);
  bytes = int8_lines_bytes(of_classes) + int8_lines_bytes(of_columns);
  if (base == nullptr) return;
  classes = int8_lines_at(of_classes, base);
  columns = int8_lines_at(of_columns, base);
}

std::array<Gemm, 3> int8_products(const Shape& shape, const Tiling& tiling) {
  const Int columns = std::min(tiling.step_columns, shape.classes);
  const Matrix packed{.is_packed = true}, in_rows{.row_stride = 1, .column_stride = 1};
  return {Gemm{.rows = tiling.block_rows,
               .columns = columns,
               .depth = shape.width,
               .a = in_rows,
               .b = packed,
               .c_stride = tiling.step_stride},
          Gemm{.rows = tiling.block_rows,
               .columns = shape.width,
               .depth = columns,
               .a = in_rows,
               .b = packed,
               .c_stride = shape.width},
          Gemm{.rows = kInt8Classes,
               .columns = shape.width,
               .depth = std::max(tiling.depth, tiling.rows),
               .a = in_rows,
               .b = in_rows,
               .c_stride = shape.width}};
}

namespace {

class Int8Head : public HeadCall {
 public:
  Int8Head(const GemmEngine& engine, const HeadStage& stage, const Arguments& args)
      : HeadCall(engine, stage, args), coding_(engine.coding()) {}

 private:
  Int8Source copies(Int first, Int rows) const {
    return {.data = space_->x + copy_of(first, 0) * tiling_->x_stride * element_bytes(),
            .dtype = shape_.dtype,
            .rows = rows,
            .columns = shape_.width,
            .stride = tiling_->x_stride};
  }
  Int8Lines x_rows() const {
    std::byte* place = space_->x_rows;
    return int8_lines_at(int8_x_rows(shape_, tiling_->rows), place);
  }

  void take_rows(Int first, Int rows) override {
    const Int8Lines lines = x_rows();
    team().for_range(rows, kRowUnit, [&](Int begin, Int end) {
      coding_.rows(copies(first, rows), begin, end, shape_.fallback, lines, counts());
    });
  }

  void pack(std::byte* panels, Int column, Int columns, Int begin, Int end) const override {
    const Int8StepWeights to(panels, columns, shape_.width);
    const Int8Source classes{.data = weight(column),
                             .dtype = shape_.dtype,
                             .rows = columns,
                             .columns = shape_.width,
                             .stride = shape_.width};
    coding_.weights(classes, (begin - column) / kInt8Block, ceil_div(end - column, kInt8Block),
                    &to.classes, &to.columns);
  }

  // Panels of weights as the right operand of a product.
  static Matrix right(const Int8Lines& panels, Int scale_stride, Int scale_step) {
    return {.data = reinterpret_cast<const std::byte*>(panels.codes),
            .is_packed = true,
            .scales = reinterpret_cast<const std::byte*>(panels.scales),
            .scale_stride = scale_stride,
            .scale_step = scale_step,
            .compensations = panels.compensation};
  }
  Int8StepWeights weights_of(const Step& step) const {
    return {const_cast<std::byte*>(step.panels), step.columns, shape_.width};
  }

  void multiply_logits(const Step& step) const override {
    Gemm gemm = int8_products(shape_, *tiling_)[0];
    const Int8Lines x = int8_rows_from(x_rows(), step.begin);
    const Int8Operands operands{.a = &x};
    gemm.rows = step.end - step.begin;
    gemm.columns = step.columns;
    gemm.b = right(weights_of(step).classes, int8_blocks(shape_.width), 1);
    gemm.c = thread_space(step.thread);
    gemm.coded = &operands;
    multiply(gemm, step.thread);
  }

  void use_logits(Step& step, bool is_first) const override {
    std::byte *space = thread_space(step.thread), *place = space + space_->coded_offset;
    Int8Lines exponentials = int8_lines_at(int8_exponentials(shape_, *tiling_), place);
    exponentials.is_unsigned = true;
    step.logits.rounded = reinterpret_cast<BFloat16*>(space + space_->rounded_offset);
    step.logits.coded = &exponentials;
    stage_.exponentials(step.logits);
    Gemm gemm = int8_products(shape_, *tiling_)[1];
    const Int8Operands operands{.a = &exponentials};
    gemm.rows = step.end - step.begin;
    gemm.depth = step.columns;
    gemm.b = right(weights_of(step).columns, 1, int8_blocks(shape_.width));
    gemm.c = reinterpret_cast<std::byte*>(input_gradient(step.part, step.begin));
    gemm.accumulate = !is_first;
    gemm.coded = &operands;
    multiply(gemm, step.thread);
  }

  // A probability is not negative: a factor that is gives its sign to x.
  void keep_row(Int first, Int r, double, float factor, float label_factor) override {
    const Int8Rows& rows = space_->of_int8;
    const Int row = first + r;
    rows.factors[row] = std::abs(factor);
    rows.label_factors[row] = std::abs(label_factor);
    rows.labels[row] = static_cast<std::int32_t>(label_of(row));
    if (!(factor < 0)) return;
    auto* x = reinterpret_cast<BFloat16*>(space_->x) + row * tiling_->x_stride;
    for (Int k = 0; k < shape_.width; ++k) x[k].bits ^= 0x8000;
  }

  void keep_x(Int, Int, Int) override {}  // all rows are

  void weight_gradient(Int first, Int rows, bool accumulate) override {
    std::byte* place = space_->x_panels;
    const Int8Lines x = int8_lines_at(int8_x_panels(shape_, rows), place);
    team().for_range(ceil_div(shape_.width, kInt8Panel), 4, [&](Int begin, Int end) {
      coding_.columns(copies(first, rows), begin, end, shape_.fallback, x);
    });
    team().for_tasks(ceil_div(shape_.classes, kInt8Classes), [&](Int task, int thread) {
      const Int begin = task * kInt8Classes, count = std::min(kInt8Classes, shape_.classes - begin);
      std::byte* space = thread_space(thread);
      Int8Lines probabilities = int8_lines_at(int8_probabilities(shape_, rows), space);
      probabilities.is_unsigned = true;
      stage_.code_probabilities(
          reinterpret_cast<const BFloat16*>(turned_.data) + begin * turned_.stride, turned_.stride,
          space_->of_int8.factors + first, count, rows, probabilities);
      Gemm gemm = int8_products(shape_, *tiling_)[2];
      const Int8Operands operands{.a = &probabilities, .b = &x};
      gemm.rows = count;
      gemm.depth = rows;
      gemm.c = weight_gradient_row(begin);
      gemm.accumulate = accumulate;
      gemm.coded = &operands;
      multiply(gemm, thread);
    });
  }

  // Terms of the labels, of one class ascending. Threads share classes out.
  void end_weight_gradient() override {
    const Int8Rows& rows = space_->of_int8;
    sort_by_index(rows.labels, 0, num_live(), rows.by_label);
    const auto label_at = [&](Int i) { return rows.labels[rows.by_label[i]]; };
    team().for_range(num_live(), kRowUnit, [&](Int begin, Int end) {
      // A class belongs to the range that its first row is in.
      while (begin > 0 && begin < num_live() && label_at(begin) == label_at(begin - 1)) ++begin;
      while (end > begin && end < num_live() && label_at(end) == label_at(end - 1)) ++end;
      for (Int i = begin; i < end; ++i) {
        const Int row = rows.by_label[i];
        stage_.subtract_row(reinterpret_cast<float*>(weight_gradient_row(rows.labels[row])),
                            reinterpret_cast<const BFloat16*>(space_->x) + row * tiling_->x_stride,
                            rows.label_factors[row], shape_.width);
      }
    });
  }

  const Int8Coding& coding_;
};

}  // namespace

void run_int8_head(const GemmEngine& engine, const HeadStage& stage, const Arguments& args) {
  Int8Head(engine, stage, args).run();
}

}  // namespace anabatic::kernels::cpu::head
