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
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/head/head_tiling.h"
#include "kernels/cpu/linear_rows.h"
#include "spec/head_inputs.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {
namespace {

using namespace head;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kMostSum = 1e18;

// Runs `gemm` in blocks that the engine takes, on one thread.
void multiply(const GemmEngine& engine, const Gemm& gemm, std::byte* workspace) {
  const Blocking most = engine.blocking(gemm);
  for (Int j = 0; j < gemm.columns; j += most.columns)
    for (Int i = 0; i < gemm.rows; i += most.rows)
      engine.compute(gemm,
                     {.row_begin = i,
                      .row_end = std::min(gemm.rows, i + most.rows),
                      .column_begin = j,
                      .column_end = std::min(gemm.columns, j + most.columns)},
                     workspace);
}

// head_log_probabilities has no scale: its results are those of rows.
bool is_of_rows(std::size_t num_inputs) { return num_inputs == 3; }

class HeadLoss {
 public:
  HeadLoss(const GemmEngine& engine, const HeadStage& stage, const Arguments& args)
      : engine_(engine),
        stage_(stage),
        args_(args),
        is_of_rows_(is_of_rows(args.inputs.size())),
        shape_(shape_of(*args.inputs[0].type, *args.inputs[1].type,
                        is_of_rows_ ? 1 : args.outputs.size(), *args.attributes)),
        cut_(cut_rows(shape_, engine, args.launch.team->num_threads(),
                      shape_.with_weight_gradient && adds(args, 2))),
        of_rows_(args, 2, spec::head_weights_input(*args.attributes)),
        scale_(is_of_rows_ ? 0.0f : *args.inputs[3].as<const float>()) {
    if (shape_.with_input_gradient) {
      seed_ = scale_ * static_cast<float>(spec::get_double(*args.attributes, "dloss"));
      if (spec::is_loss_scaled(*args.attributes))
        seed_ *= *args.inputs[spec::kHeadLossScaleInput].as<const float>();
    }
    lay_out(cut_.held ? *cut_.held : *cut_.rest);
  }

  void run() {
    find_live_rows();
    if (shape_.with_input_gradient) clear_rest();
    const Int held = cut_.held ? std::min(num_live_, cut_.held->depth) : 0;
    if (held > 0) run_held_chunk(held);
    if (num_live_ > held) {
      lay_out(*cut_.rest);
      turned_ = {space_->turned, tiling_->turned_stride};
      const Int rows = even_rows(num_live_ - held, tiling_->rows, shape_.sum_terms);
      for (Int first = held; first < num_live_; first += rows)
        run_chunk(first, std::min(rows, num_live_ - first));
    }
    if (is_of_rows_) return write_rows();
    double sum = 0;
    for (Int i = 0; i < num_live_; ++i) sum += space_->losses[i];
    float* loss = args_.outputs[0].as<float>();
    const auto total = static_cast<float>(scale_ * sum);
    *loss = adds(args_, 0) ? *loss + total : total;
  }

 private:
  // `live` and `losses` lie alike in the space of either.
  void lay_out(const Tiling& tiling) {
    tiling_ = &tiling;
    space_.emplace(shape_, tiling, engine_, args_.launch.team->num_threads(), args_.workspace);
    is_packed_ = false;
  }

  Int element_bytes() const { return size_bytes(shape_.dtype); }
  const std::byte* weight(Int row) const {
    return args_.inputs[1].data + row * shape_.width * element_bytes();
  }

  void find_live_rows() {
    for (Int t = 0; t < shape_.rows; ++t) {
      require_label(of_rows_.labels[t], shape_.classes);
      if (of_rows_.counts(t)) space_->live[num_live_++] = static_cast<std::int32_t>(t);
    }
  }

  void write_rows() {
    float *log_probabilities = args_.outputs[0].as<float>(),
          *margins = args_.outputs[1].as<float>();
    for (Int t = 0; t < shape_.rows; ++t)
      if (of_rows_.labels[t] == kIgnoredLabel) log_probabilities[t] = margins[t] = 0;
    for (Int i = 0; i < num_live_; ++i)
      log_probabilities[space_->live[i]] = static_cast<float>(-space_->losses[i]);
  }

  // Clears what no live row writes: dx of the other rows, and dweight when there is none.
  void clear_rest() {
    const Int row_bytes = shape_.width * element_bytes();
    args_.launch.team->for_range(shape_.rows, row_grain(shape_.width), [&](Int begin, Int end) {
      for (Int t = begin; t < end; ++t)
        if (!of_rows_.counts(t) && !adds(args_, 1)) {
          std::byte* row = args_.outputs[1].data + t * row_bytes;
          std::fill(row, row + row_bytes, std::byte{});
        }
    });
    if (!shape_.with_weight_gradient || num_live_ > 0 || adds(args_, 2)) return;
    float* dweight = args_.outputs[2].as<float>();
    args_.launch.team->for_range(size(args_.outputs[2]), kElementGrain, [&](Int begin, Int end) {
      std::fill(dweight + begin, dweight + end, 0.0f);
    });
  }

  // Rows at a time that start at live row `first`, in blocks.
  struct Chunk {
    Int first, rows, block_rows;
  };

  // The first one: exponentials of class c are stored in the first bytes of dweight's row c.
  void run_held_chunk(Int held) {
    const Int stride = shape_.width * Int{sizeof(float)} / tiling_->exponential_bytes;
    const Int most_rows = even_rows(held, tiling_->rows, kRowUnit);
    for (Int first = 0; first < held; first += most_rows) {
      const Int rows = std::min(most_rows, held - first);
      turned_ = {args_.outputs[2].data + first * tiling_->exponential_bytes, stride};
      run_rows(first, rows);
      pack_x(first, rows, held);
    }
    // A thread takes as many classes as its space for logits holds.
    const Int row_bytes = tiling_->turned_row_bytes();
    const Int most = space_->engine_offset / row_bytes / kLeastCopiedClasses * kLeastCopiedClasses;
    args_.launch.team->for_tasks(ceil_div(shape_.classes, most), [&](Int task, int thread) {
      const Int begin = task * most, count = std::min(most, shape_.classes - begin);
      std::byte* copy = thread_space(thread);
      const std::byte* row = weight_gradient(begin);
      for (Int j = 0; j < count; ++j, row += shape_.width * Int{sizeof(float)})
        std::memcpy(copy + j * row_bytes, row,
                    static_cast<std::size_t>(held * tiling_->exponential_bytes));
      add_weight_gradient(begin, count, held, {copy, tiling_->turned_stride}, false, thread);
    });
  }

  // A later chunk, or one of a call that adds.
  void run_chunk(Int first, Int rows) {
    run_rows(first, rows);
    if (!shape_.with_weight_gradient) return;
    pack_x(0, rows, rows);
    const Int most =
        engine_.blocking(weight_gradient_product(shape_, *tiling_, rows, turned_.stride)).rows;
    args_.launch.team->for_tasks(ceil_div(shape_.classes, most), [&](Int task, int thread) {
      const Int begin = task * most;
      add_weight_gradient(
          begin, std::min(most, shape_.classes - begin), rows,
          {turned_.data + begin * turned_.stride * tiling_->exponential_bytes, turned_.stride},
          first > 0 || adds(args_, 2), thread);
    });
  }

  // Losses, dx and exponentials.
  void run_rows(Int first, Int rows) {
    const Int blocks =  // as many for each thread
        round_up(ceil_div(rows, tiling_->block_rows),
                 tiling_->packs_apart ? tiling_->lanes : args_.launch.team->num_threads());
    const Chunk chunk{
        .first = first,
        .rows = rows,
        .block_rows = std::min(tiling_->block_rows, round_up(ceil_div(rows, blocks), kRowUnit))};
    for_rows(chunk, [&](Int r) { start_row(first, r); });
    if (is_of_rows_) {
      run_steps(chunk, &HeadLoss::exponentials_and_largest);
      for (Int r = 0; r < rows; ++r)
        args_.outputs[1].as<float>()[space_->live[first + r]] = space_->of_label[r] - largest_of(r);
    } else {
      run_steps(chunk, &HeadLoss::exponentials);
    }
    if (find_misfits(rows)) {
      run_steps(chunk, &HeadLoss::find_largest);
      for (Int r = 0; r < rows; ++r)
        if (const float largest = largest_of(r); largest < kInfinity)
          space_->shift[r] = std::max(largest, space_->of_label[r]);
      run_steps(chunk, &HeadLoss::exponentials);
    }
    for_rows(chunk, [&](Int r) { finish_row(first, r); });
  }

  template <class Body>
  void for_rows(const Chunk& chunk, Body&& body) {
    args_.launch.team->for_range(chunk.rows, kRowUnit, [&](Int begin, Int end) {
      for (Int r = begin; r < end; ++r) body(r);
    });
  }

  // Exponentials of a class at data + class · stride, in elements.
  struct Turned {
    std::byte* data;
    Int stride;
  };

  std::byte* weight_gradient(Int row) const {
    return args_.outputs[2].data + row * shape_.width * Int{sizeof(float)};
  }

  // The current rows become rows [at, at + rows) of the weight-gradient's `depth`.
  void pack_x(Int at, Int rows, Int depth) {
    const PanelShape panels = panel_shape(tiling_->operand, depth, shape_.width, true);
    const Int operand_bytes = size_bytes(tiling_->operand);
    args_.launch.team->for_range(shape_.width, kPanelColumns, [&](Int begin, Int end) {
      stage_.pack_depth(
          space_->x_panels + begin / kPanelColumns * panels.panel_elements() * operand_bytes,
          panels.panel_elements(), space_->x + begin * operand_bytes, tiling_->operand,
          tiling_->x_stride, at, at + rows, end - begin);
    });
  }

  // Adds the gradient of `count` classes from `begin` on, over the `rows` of x's panels.
  void add_weight_gradient(Int begin, Int count, Int rows, Turned turned, bool accumulate,
                           int thread) {
    Gemm gemm = weight_gradient_product(shape_, *tiling_, rows, turned.stride);
    gemm.rows = count;
    gemm.a.data = turned.data;
    gemm.b.data = space_->x_panels;
    gemm.c = weight_gradient(begin);
    gemm.accumulate = accumulate;
    multiply(engine_, gemm, engine_space(thread));
  }

  std::byte* thread_space(int thread) const {
    return space_->threads + thread * space_->thread_bytes;
  }
  std::byte* engine_space(int thread) const { return thread_space(thread) + space_->engine_offset; }

  Int label_of(Int first, Int row) const { return of_rows_.labels[space_->live[first + row]]; }

  void start_row(Int first, Int r) {
    const std::byte* x =
        args_.inputs[0].data + space_->live[first + r] * shape_.width * element_bytes();
    space_->of_label[r] = space_->shift[r] =
        stage_.copy_row(x, weight(label_of(first, r)), shape_.dtype, shape_.width,
                        {space_->x, tiling_->operand, tiling_->x_stride}, r);
    set_largest(r, -kInfinity);
  }

  // The sum over all parts, for a row of the chunk.
  double sum_of(Int r) const {
    double sum = 0;
    for (Int part = 0; part < tiling_->parts; ++part) sum += space_->sums[at(part, r)];
    return sum;
  }
  float largest_of(Int r) const {
    float largest = -kInfinity;
    for (Int part = 0; part < tiling_->parts; ++part)
      largest = std::max(largest, space_->largest[at(part, r)]);
    return largest;
  }
  void set_largest(Int r, float to) {
    for (Int part = 0; part < tiling_->parts; ++part) space_->largest[at(part, r)] = to;
  }
  Int at(Int part, Int r) const { return part * tiling_->rows + r; }

  // Rows that fit keep an infinity, and their shift, while the largest logits are sought.
  bool find_misfits(Int rows) {
    bool any = false;
    for (Int r = 0; r < rows; ++r) {
      const bool fits = sum_of(r) <= kMostSum;
      set_largest(r, fits ? kInfinity : -kInfinity);
      any |= !fits;
    }
    return any;
  }

  // One step of a block's logits; `use` says what becomes of them.
  struct Step {
    Int part, begin, end, column, columns;
    const std::byte* panels;
    int thread;
    HeadLogits logits;
  };
  using Use = void (HeadLoss::*)(Step&);

  // Columns of a stretch of a part, and where it is packed.
  struct Stretch {
    Int part, begin, end;
    std::byte* panels;
  };

  std::byte* step_panels(const Stretch& stretch, Int column) const {
    return stretch.panels + (column - stretch.begin) / kStepColumns * tiling_->step_bytes;
  }

  Int part_begin(Int part) const { return part * tiling_->part_columns; }
  Int part_end(Int part) const {
    return std::min(part_begin(part) + tiling_->part_columns, shape_.classes);
  }

  // body(stretch) for each one of a part, packed at `panels`.
  template <class Body>
  void for_stretches(Int part, std::byte* panels, Body&& body) const {
    const Int end = part_end(part), columns = tiling_->stretch_columns();
    for (Int begin = part_begin(part); begin < end; begin += columns)
      body(Stretch{part, begin, std::min(end, begin + columns), panels});
  }

  // All steps of the blocks that have a row to compute: one whose `largest` is below infinity.
  void run_steps(const Chunk& chunk, Use use) {
    if (tiling_->packs_apart) {
      args_.launch.team->run([&](int thread) { run_steps_of(thread, chunk, use); });
    } else {
      for (Int part = 0; part < tiling_->parts; ++part) run_steps_together(part, chunk, use);
    }
    is_packed_ = tiling_->parts == 1 && tiling_->stretch_columns() >= shape_.classes;
  }

  // The steps of one thread's blocks, in its parts, from its own packing.
  void run_steps_of(int thread, const Chunk& chunk, Use use) {
    const Int num_blocks = ceil_div(chunk.rows, chunk.block_rows), lanes = tiling_->lanes;
    std::byte* panels = space_->weight_panels + thread * tiling_->stretch_bytes();
    for (Int part = thread / lanes; part < tiling_->parts;
         part += args_.launch.team->num_threads() / lanes)
      for_stretches(part, panels, [&](const Stretch& stretch) {
        if (!is_packed_) pack(stretch, stretch.begin, stretch.end);
        for (Int block = thread % lanes; block < num_blocks; block += lanes)
          run_block(chunk, block, stretch, block + lanes >= num_blocks, thread, use);
      });
  }

  void run_steps_together(Int part, const Chunk& chunk, Use use) {
    device::ThreadTeam& team = *args_.launch.team;
    for_stretches(part, space_->weight_panels, [&](const Stretch& stretch) {
      if (!is_packed_)
        team.for_range(stretch.end - stretch.begin, kPanelColumns, [&](Int begin, Int end) {
          pack(stretch, stretch.begin + begin, stretch.begin + end);
        });
      team.for_tasks(ceil_div(chunk.rows, chunk.block_rows), [&](Int block, int thread) {
        run_block(chunk, block, stretch, false, thread, use);
      });
    });
  }

  // `is_last`: what the thread does next is to pack the next stretch.
  void run_block(const Chunk& chunk, Int block, const Stretch& stretch, bool is_last, int thread,
                 Use use) {
    const Int begin = block * chunk.block_rows;
    const Int end = std::min(chunk.rows, begin + chunk.block_rows);
    const float* largest = space_->largest + at(stretch.part, 0);
    if (std::none_of(largest + begin, largest + end, [](float of) { return of < kInfinity; }))
      return;
    for (Int column = stretch.begin; column < stretch.end; column += kStepColumns) {
      Step step{.part = stretch.part,
                .begin = begin,
                .end = end,
                .column = column,
                .columns = std::min(kStepColumns, stretch.end - column),
                .panels = step_panels(stretch, column),
                .thread = thread,
                .logits = logits_at(stretch.part, begin, end, thread)};
      if (is_last && column + kStepColumns >= stretch.end) {
        const Int next = std::min(tiling_->stretch_columns(), part_end(stretch.part) - stretch.end);
        step.logits.ahead = weight(stretch.end);
        step.logits.ahead_bytes = next * shape_.width * element_bytes();
      }
      run_step(chunk.first, step, use);
    }
  }

  // The logits of rows [begin, end) of a chunk, in the thread's space.
  HeadLogits logits_at(Int part, Int begin, Int end, int thread) const {
    return {.logits = reinterpret_cast<float*>(thread_space(thread)),
            .stride = tiling_->step_stride,
            .rows = end - begin,
            .columns = 0,
            .shift = space_->shift + begin,
            .sums = space_->sums + at(part, begin),
            .rounded = nullptr,
            .rounded_stride = tiling_->rounded_stride};
  }

  // Classes [begin, end) of a stretch.
  void pack(const Stretch& stretch, Int begin, Int end) const {
    for (Int row = begin; row < end; row += kPanelColumns) {
      const Int in_step = (row - stretch.begin) % kStepColumns;
      const Int count = std::min(kPanelColumns, stretch.end - row);
      std::byte* panels = step_panels(stretch, row);
      const Int panel =
          panel_shape(shape_.dtype, kPanelColumns, shape_.width, false).panel_elements();
      stage_.pack_columns(panels + in_step / kPanelColumns * panel * element_bytes(), weight(row),
                          shape_.dtype, shape_.width, count, shape_.width);
      if (!shape_.with_input_gradient) continue;
      const Int columns = std::min(kStepColumns, stretch.end - (row - in_step));
      stage_.pack_depth(panels + tiling_->step_depth_offset,
                        panel_shape(shape_.dtype, columns, shape_.width, true).panel_elements(),
                        weight(row), shape_.dtype, shape_.width, in_step, in_step + count,
                        shape_.width);
    }
  }

  void run_step(Int first, Step& step, Use use) {
    Gemm gemm = logits_product(shape_, *tiling_, step.end - step.begin);
    gemm.columns = step.logits.columns = step.columns;
    gemm.a.data = space_->x + step.begin * tiling_->x_stride * size_bytes(tiling_->operand);
    gemm.b.data = step.panels;
    gemm.c = thread_space(step.thread);
    multiply(engine_, gemm, engine_space(step.thread));
    for (Int r = step.begin; r < step.end; ++r)  // the label's own term is added apart
      if (const Int j = label_of(first, r) - step.column; 0 <= j && j < step.columns)
        step.logits.logits[(r - step.begin) * tiling_->step_stride + j] = -kInfinity;
    (this->*use)(step);
  }

  void find_largest(Step& step) {
    stage_.largest(step.logits, space_->largest + at(step.part, step.begin));
  }

  void exponentials_and_largest(Step& step) {
    find_largest(step);
    exponentials(step);
  }

  void exponentials(Step& step) {
    const bool rounds = tiling_->operand == DType::kBFloat16;
    const bool is_first = step.column == part_begin(step.part);
    if (is_first) std::fill_n(step.logits.sums, step.logits.rows, 0.0);
    std::byte* space = thread_space(step.thread);
    if (shape_.with_input_gradient && rounds)
      step.logits.rounded = reinterpret_cast<BFloat16*>(space + space_->rounded_offset);
    if (shape_.with_weight_gradient) {
      step.logits.turned =
          turned_.data + (step.column * turned_.stride + step.begin) * tiling_->exponential_bytes;
      step.logits.turned_dtype = shape_.dtype;
      step.logits.turned_stride = turned_.stride;
    }
    stage_.exponentials(step.logits);
    if (!shape_.with_input_gradient) return;
    Gemm gemm = input_gradient_product(shape_, *tiling_, step.end - step.begin);
    gemm.depth = step.columns;
    gemm.a.data = rounds ? space + space_->rounded_offset : space;
    gemm.b.data = step.panels + tiling_->step_depth_offset;
    gemm.c = reinterpret_cast<std::byte*>(input_gradient(step.part, step.begin));
    gemm.accumulate = !is_first;
    multiply(engine_, gemm, engine_space(step.thread));
  }

  float* input_gradient(Int part, Int r) const {
    return space_->input_gradient + at(part, r) * shape_.width;
  }

  void finish_row(Int first, Int r) {
    const Int token = space_->live[first + r], label = of_rows_.labels[token];
    const double row_weight = of_rows_.weight(token);
    const double below = static_cast<double>(space_->of_label[r]) - space_->shift[r];
    const double sum = sum_of(r), of_label = std::exp(below), total = sum + of_label;
    space_->losses[first + r] =
        row_weight * (of_label > 1e-20 ? std::log1p(sum / of_label) : std::log(total) - below);
    if (!shape_.with_input_gradient) return;
    const double seed = seed_ * row_weight;
    const auto factor = static_cast<float>(seed / total);
    stage_.input_gradient({.dx = args_.outputs[1].data + token * shape_.width * element_bytes(),
                           .accumulate = adds(args_, 1),
                           .sums = input_gradient(0, r),
                           .more_sums = tiling_->parts > 1 ? input_gradient(1, r) : nullptr,
                           .factor = factor,
                           .label_factor = static_cast<float>(seed * (sum / total))},
                          weight(label), shape_.dtype, shape_.width);
    if (!shape_.with_weight_gradient) return;
    stage_.scale_row({space_->x, tiling_->operand, tiling_->x_stride}, r, shape_.width, factor);
    const Int at = label * turned_.stride + r;
    if (shape_.dtype == DType::kBFloat16) {
      reinterpret_cast<BFloat16*>(turned_.data)[at] = to_bfloat16(static_cast<float>(-sum));
    } else {
      reinterpret_cast<float*>(turned_.data)[at] = static_cast<float>(-sum);
    }
  }

  const GemmEngine& engine_;
  const HeadStage& stage_;
  const Arguments& args_;
  const bool is_of_rows_;
  const Shape shape_;
  const Cut cut_;
  const Tiling* tiling_ = nullptr;  // of the current rows
  std::optional<Space> space_;
  const LossRows of_rows_;
  const float scale_;
  double seed_ = 0;  // of every row's weighted loss
  Int num_live_ = 0;
  Turned turned_{};         // where exponentials go, of the current rows
  bool is_packed_ = false;  // all of the weights are one stretch, and packed
};

Shape shape_of(const spec::Problem& problem) {
  return head::shape_of(problem.inputs[0], problem.inputs[1],
                        is_of_rows(problem.inputs.size()) ? 1 : problem.outputs.size(),
                        *problem.attributes);
}

}  // namespace

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
Support HeadLossRows<kEngine, kStage>::supports(const spec::Problem& problem) {
  const GemmEngine* engine = kEngine();
  if (engine == nullptr) return no("not in this build");
  if (!usable(engine, *problem.device)) return no(fmt::format("the device has no {}", engine->isa));
  for (const TensorType* type : {&problem.inputs[0], &problem.inputs[1]}) {
    if (type->layout != kRowMajor)
      return no(fmt::format("expected row-major operands, got {}", to_string(*type)));
    if (type->dtype != DType::kFloat32 && type->dtype != DType::kBFloat16)
      return no(fmt::format("expected f32 or bf16, got {}", to_string(type->dtype)));
    if (!engine->accepts(type->dtype, type->dtype)) return no("expected bf16 x and weight");
  }
  return yes();
}

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
std::int64_t HeadLossRows<kEngine, kStage>::workspace_bytes(const spec::Problem& problem) {
  const Shape shape = shape_of(problem);
  // A team that is smaller than planned for needs no more. A call of several micro-batches adds, or
  // is the first of them.
  const int num_threads = problem.device->num_threads;
  Int bytes = 0;
  for (const bool adds : {false, true}) {
    if (adds && !problem.may_add) break;
    const Cut cut = cut_rows(shape, *kEngine(), num_threads, adds);
    for (const auto& tiling : {cut.held, cut.rest})
      if (tiling)
        bytes = std::max(bytes, Space(shape, *tiling, *kEngine(), num_threads, nullptr).bytes);
  }
  return bytes;
}

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
std::int64_t HeadLossRows<kEngine, kStage>::slicing_bytes(const spec::Problem& problem) {
  // Weights are packed once for each group of rows, and each chunk but the first goes over the sums
  // of their gradient, of which products hide all but about a quarter of a pass.
  const auto bytes = [&](Int slices) {
    Shape shape = shape_of(problem);
    shape.slices = slices;
    const Cut cut = cut_rows(shape, *kEngine(), problem.device->num_threads, problem.may_add);
    Int rest = shape.rows, packings = 0, sums = 0;
    if (cut.held) {
      packings = ceil_div(cut.held->depth, cut.held->rows) * cut.held->passes();
      rest = std::max<Int>(rest - cut.held->depth, 0);
    }
    if (cut.rest) {
      const Int chunks = ceil_div(rest, cut.rest->rows);
      packings += chunks * cut.rest->passes();
      sums = cut.held ? chunks : chunks - 1;
    }
    return shape.classes * shape.width *
           (packings * size_bytes(shape.dtype) + sums * Int{sizeof(float)} / 4);
  };
  return std::max<Int>(bytes(shape_of(problem).slices) - bytes(1), 0);
}

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
void HeadLossRows<kEngine, kStage>::run(const Arguments& args) {
  HeadLoss(*kEngine(), *kStage, args).run();
}

#ifdef ANABATIC_CPU_X86
template struct HeadLossRows<gemm_amx_bf16, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_avx512_bf16, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_avx512, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_avx2, &avx2::kHeadStage>;
#endif
template struct HeadLossRows<gemm_portable, &portable::kHeadStage>;

}  // namespace anabatic::kernels::cpu
