// SPDX-License-Identifier: Apache-2.0
// Head and cross-entropy in one pass over chunks of the rows that count: those with a label, and a
// weight other than 0. A chunk leaves e = exp(logit - shift) of [classes, rows] for the
// weight-gradient, nothing else of that size.
// The first chunk's exponentials are stored in the bytes of its weight gradient, each class in the
// bytes of its own row, unless the call adds to a gradient. In bf16 there are two rows for each
// column of x.
//
// No product is computed twice, because the shift is known before the first logit: it is the logit
// of the row's own label, so that e needs no rescaling and dx runs directly after the logits. With
// S the sum of e over the other classes and Z = S + e(label):
//   loss = log(Z / e(label));   dx = f·(Σ e·w - S·w_label), dw += e·(f·x), e(label) := -S, f = s/Z
// where s is the loss's scale, times the row's weight where rows have one. A row with S beyond
// kMostSum (a logit about 40 above the label's) runs its block again with the largest logit as
// shift.
//
// A stretch of the vocabulary is packed in both directions, once for all rows of a chunk, which
// pass by in blocks, a step of the stretch at a time. A large vocabulary has two parts, each with
// sums of its own over e and e·w: an even number of threads shares the parts out, and what they
// pack. Threads that have enough rows each pack for themselves: they never wait for each other, and
// panels never move from core to core.
//
// What multiplies is that of a class for each kind of products: head_float.cpp, head_int8.cpp.
#pragma once
#include <optional>

#include "kernels/cpu/head/head_stage.h"
#include "kernels/cpu/head/head_tiling.h"

namespace anabatic::kernels::cpu::head {

class HeadCall {
 public:
  HeadCall(const GemmEngine& engine, const HeadStage& stage, const Arguments& args);
  virtual ~HeadCall() = default;
  void run();

 protected:
  // One step of a block's logits.
  struct Step {
    Int part, begin, end, column, columns;
    const std::byte* panels;
    int thread;
    HeadLogits logits;
  };
  // Exponentials of a class at data + class · stride, in elements.
  struct Turned {
    std::byte* data;
    Int stride;
  };

  // Live rows [first, first + rows) are copied, and come next.
  virtual void take_rows(Int first, Int rows) = 0;
  // Classes [begin, end) of the step of `columns` classes from `column` on, to its panels.
  virtual void pack(std::byte* panels, Int column, Int columns, Int begin, Int end) const = 0;
  virtual void multiply_logits(const Step& step) const = 0;
  // Turns logits into exponentials, and adds their products with the weights to the input gradient.
  virtual void use_logits(Step& step, bool is_first) const = 0;
  // Row `r` from live row `first` on has this sum over the other classes, and gradients with these
  // factors (HeadGradient).
  virtual void keep_row(Int first, Int r, double sum, float factor, float label_factor) = 0;
  // All current rows are kept; they become rows [at, at + rows) of the weight-gradient's `depth`.
  virtual void keep_x(Int at, Int rows, Int depth) = 0;
  // Adds that of live rows [first, first + rows), from the exponentials of `turned_`.
  virtual void weight_gradient(Int first, Int rows, bool accumulate) = 0;
  // After the last chunk of a call with a weight gradient.
  virtual void end_weight_gradient() = 0;

  Int element_bytes() const { return size_bytes(shape_.stored); }
  const std::byte* weight(Int row) const {
    return args_.inputs[1].data + row * shape_.width * element_bytes();
  }
  std::byte* weight_gradient_row(Int row) const {
    return args_.outputs[2].data + row * shape_.width * Int{sizeof(float)};
  }
  // Which copy is that of row `r` from live row `first` on.
  Int copy_of(Int first, Int r) const { return shape_.keeps_all_rows() ? first + r : r; }
  Int label_of(Int live) const { return of_rows_.labels[space_->live[live]]; }
  Int num_live() const { return num_live_; }
  std::byte* thread_space(int thread) const {
    return space_->threads + thread * space_->thread_bytes;
  }
  std::byte* engine_space(int thread) const { return thread_space(thread) + space_->engine_offset; }
  float* input_gradient(Int part, Int r) const {
    return space_->input_gradient + at(part, r) * shape_.width;
  }
  // Runs `gemm` in blocks that the engine takes, on one thread.
  void multiply(const Gemm& gemm, int thread) const;
  device::ThreadTeam& team() const { return *args_.launch.team; }
  CodingCounts* counts() const { return args_.counts; }

  const GemmEngine& engine_;
  const HeadStage& stage_;
  const Arguments& args_;
  const bool is_of_rows_;
  const Shape shape_;
  const Tiling* tiling_ = nullptr;  // of the current rows
  std::optional<Space> space_;
  Turned turned_{};  // where exponentials go, of the current rows

 private:
  // Rows at a time that start at live row `first`, in blocks.
  struct Chunk {
    Int first, rows, block_rows;
  };
  // Columns of a stretch of a part, and where it is packed.
  struct Stretch {
    Int part, begin, end;
    std::byte* panels;
  };
  // What becomes of a step's logits.
  using Use = void (HeadCall::*)(Step&);

  void lay_out(const Tiling& tiling);
  void find_live_rows();
  void write_rows();
  void clear_rest();
  void run_held_chunk(Int held);
  void run_chunk(Int first, Int rows);
  void run_rows(Int first, Int rows);
  template <class Body>
  void for_rows(const Chunk& chunk, Body&& body) const;
  void start_row(Int first, Int r);
  void finish_row(Int first, Int r);

  double sum_of(Int r) const;
  float largest_of(Int r) const;
  void set_largest(Int r, float to);
  Int at(Int part, Int r) const { return part * tiling_->rows + r; }
  bool find_misfits(Int rows);

  Int part_begin(Int part) const { return part * tiling_->part_columns; }
  Int part_end(Int part) const;
  std::byte* step_panels(const Stretch& stretch, Int column) const;
  template <class Body>
  void for_stretches(Int part, std::byte* panels, Body&& body) const;
  void run_steps(const Chunk& chunk, Use use);
  void run_steps_of(int thread, const Chunk& chunk, Use use);
  void run_steps_together(Int part, const Chunk& chunk, Use use);
  void pack_stretch(const Stretch& stretch, Int begin, Int end) const;
  void run_block(const Chunk& chunk, Int block, const Stretch& stretch, bool is_last, int thread,
                 Use use);
  HeadLogits logits_at(Int part, Int begin, Int end, int thread) const;
  void run_step(Int first, Step& step, Use use);
  void find_largest(Step& step);
  void exponentials_and_largest(Step& step);
  void exponentials(Step& step);

  const Cut cut_;
  const LossRows of_rows_;
  const float scale_;
  double seed_ = 0;  // of every row's weighted loss
  Int num_live_ = 0;
  bool is_packed_ = false;  // all of the weights are one stretch, and packed
};

// head_log_probabilities has no scale: its results are those of rows.
constexpr bool is_of_rows(std::size_t num_inputs) { return num_inputs == 3; }

// In float products, and in int8 products.
void run_float_head(const GemmEngine& engine, const HeadStage& stage, const Arguments& args);
void run_int8_head(const GemmEngine& engine, const HeadStage& stage, const Arguments& args);

}  // namespace anabatic::kernels::cpu::head
