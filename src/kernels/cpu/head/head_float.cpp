// SPDX-License-Identifier: Apache-2.0
// Float products of a head with its loss. The label's own term is one of e: e(label) = -S. Rows of
// x carry the factors of the weight gradient.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/head/head_call.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::head {
namespace {

class FloatHead : public HeadCall {
 public:
  using HeadCall::HeadCall;

 private:
  void take_rows(Int, Int) override {}

  void pack(std::byte* panels, Int column, Int columns, Int begin, Int end) const override {
    for (Int row = begin; row < end; row += kPanelColumns) {
      const Int in_step = row - column, count = std::min(kPanelColumns, end - row);
      const Int panel =
          panel_shape(shape_.dtype, kPanelColumns, shape_.width, false).panel_elements();
      stage_.pack_columns(panels + in_step / kPanelColumns * panel * size_bytes(shape_.dtype),
                          weight(row), shape_.stored, shape_.width, count, shape_.width);
      if (!shape_.with_input_gradient) continue;
      stage_.pack_depth(panels + tiling_->step_depth_offset,
                        panel_shape(shape_.dtype, columns, shape_.width, true).panel_elements(),
                        weight(row), shape_.stored, shape_.width, in_step, in_step + count,
                        shape_.width);
    }
  }

  void multiply_logits(const Step& step) const override {
    Gemm gemm = logits_product(shape_, *tiling_, step.end - step.begin);
    gemm.columns = step.columns;
    gemm.a.data = space_->x + step.begin * tiling_->x_stride * size_bytes(tiling_->operand);
    gemm.b.data = step.panels;
    gemm.c = thread_space(step.thread);
    multiply(gemm, step.thread);
  }

  void use_logits(Step& step, bool is_first) const override {
    const bool rounds = tiling_->operand == DType::kBFloat16;
    std::byte* space = thread_space(step.thread);
    if (shape_.with_input_gradient && rounds)
      step.logits.rounded = reinterpret_cast<BFloat16*>(space + space_->rounded_offset);
    stage_.exponentials(step.logits);
    if (!shape_.with_input_gradient) return;
    Gemm gemm = input_gradient_product(shape_, *tiling_, step.end - step.begin);
    gemm.depth = step.columns;
    gemm.a.data = rounds ? space + space_->rounded_offset : space;
    gemm.b.data = step.panels + tiling_->step_depth_offset;
    gemm.c = reinterpret_cast<std::byte*>(input_gradient(step.part, step.begin));
    gemm.accumulate = !is_first;
    multiply(gemm, step.thread);
  }

  void keep_row(Int first, Int r, double sum, float factor, float) override {
    stage_.scale_row({space_->x, tiling_->operand, tiling_->x_stride}, r, shape_.width, factor);
    const Int at = label_of(first + r) * turned_.stride + r;
    if (shape_.dtype == DType::kBFloat16) {
      reinterpret_cast<BFloat16*>(turned_.data)[at] = to_bfloat16(static_cast<float>(-sum));
    } else {
      reinterpret_cast<float*>(turned_.data)[at] = static_cast<float>(-sum);
    }
  }

  void keep_x(Int at, Int rows, Int depth) override {
    const PanelShape panels = panel_shape(tiling_->operand, depth, shape_.width, true);
    const Int operand_bytes = size_bytes(tiling_->operand);
    team().for_range(shape_.width, kPanelColumns, [&](Int begin, Int end) {
      stage_.pack_depth(
          space_->x_panels + begin / kPanelColumns * panels.panel_elements() * operand_bytes,
          panels.panel_elements(), space_->x + begin * operand_bytes, tiling_->operand,
          tiling_->x_stride, at, at + rows, end - begin);
    });
  }

  void weight_gradient(Int, Int rows, bool accumulate) override {
    if (tiling_->is_held) return held_weight_gradient(rows);
    const Int most =
        engine_.blocking(weight_gradient_product(shape_, *tiling_, rows, turned_.stride)).rows;
    team().for_tasks(ceil_div(shape_.classes, most), [&](Int task, int thread) {
      const Int begin = task * most;
      add_weight_gradient(
          begin, std::min(most, shape_.classes - begin), rows,
          {turned_.data + begin * turned_.stride * tiling_->exponential_bytes, turned_.stride},
          accumulate, thread);
    });
  }

  // A thread copies as many classes as its space for logits holds, and writes over them.
  void held_weight_gradient(Int rows) {
    const Int row_bytes = tiling_->turned_row_bytes();
    const Int most = space_->engine_offset / row_bytes / kLeastCopiedClasses * kLeastCopiedClasses;
    team().for_tasks(ceil_div(shape_.classes, most), [&](Int task, int thread) {
      const Int begin = task * most, count = std::min(most, shape_.classes - begin);
      std::byte* copy = thread_space(thread);
      for (Int j = 0; j < count; ++j)
        std::memcpy(copy + j * row_bytes, weight_gradient_row(begin + j),
                    static_cast<std::size_t>(rows * tiling_->exponential_bytes));
      add_weight_gradient(begin, count, rows, {copy, tiling_->turned_stride}, false, thread);
    });
  }

  // Adds the gradient of `count` classes from `begin` on, over the `rows` of x's panels.
  void add_weight_gradient(Int begin, Int count, Int rows, Turned turned, bool accumulate,
                           int thread) {
    Gemm gemm = weight_gradient_product(shape_, *tiling_, rows, turned.stride);
    gemm.rows = count;
    gemm.a.data = turned.data;
    gemm.b.data = space_->x_panels;
    gemm.c = weight_gradient_row(begin);
    gemm.accumulate = accumulate;
    multiply(gemm, thread);
  }

  void end_weight_gradient() override {}
};

}  // namespace

void run_float_head(const GemmEngine& engine, const HeadStage& stage, const Arguments& args) {
  FloatHead(engine, stage, args).run();
}

}  // namespace anabatic::kernels::cpu::head
