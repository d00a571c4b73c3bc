// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/head/head_call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rounding.h"
#include "spec/head_inputs.h"

namespace anabatic::kernels::cpu::head {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kMostSum = 1e18;

}  // namespace

HeadCall::HeadCall(const GemmEngine& engine, const HeadStage& stage, const Arguments& args)
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

void HeadCall::run() {
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
  if (shape_.with_weight_gradient) end_weight_gradient();
  if (is_of_rows_) return write_rows();
  double sum = 0;
  for (Int i = 0; i < num_live_; ++i) sum += space_->losses[i];
  float* loss = args_.outputs[0].as<float>();
  const auto total = static_cast<float>(scale_ * sum);
  *loss = adds(args_, 0) ? *loss + total : total;
}

// `live`, `losses` and what int8 products keep of all rows lie alike in the space of either.
void HeadCall::lay_out(const Tiling& tiling) {
  tiling_ = &tiling;
  space_.emplace(shape_, tiling, engine_, team().num_threads(), args_.workspace);
  is_packed_ = false;
}

void HeadCall::find_live_rows() {
  for (Int t = 0; t < shape_.rows; ++t) {
    require_label(of_rows_.labels[t], shape_.classes);
    if (of_rows_.counts(t)) space_->live[num_live_++] = static_cast<std::int32_t>(t);
  }
}

void HeadCall::write_rows() {
  float *log_probabilities = args_.outputs[0].as<float>(), *margins = args_.outputs[1].as<float>();
  for (Int t = 0; t < shape_.rows; ++t)
    if (of_rows_.labels[t] == kIgnoredLabel) log_probabilities[t] = margins[t] = 0;
  for (Int i = 0; i < num_live_; ++i)
    log_probabilities[space_->live[i]] = static_cast<float>(-space_->losses[i]);
}

// Clears what no live row writes: dx of the other rows, and dweight when there is none.
void HeadCall::clear_rest() {
  const Int row_bytes = shape_.width * size_bytes(args_.outputs[1].type->dtype);
  team().for_range(shape_.rows, row_grain(shape_.width), [&](Int begin, Int end) {
    for (Int t = begin; t < end; ++t)
      if (!of_rows_.counts(t) && !adds(args_, 1)) {
        std::byte* row = args_.outputs[1].data + t * row_bytes;
        std::fill(row, row + row_bytes, std::byte{});
      }
  });
  if (!shape_.with_weight_gradient || num_live_ > 0 || adds(args_, 2)) return;
  float* dweight = args_.outputs[2].as<float>();
  team().for_range(size(args_.outputs[2]), kElementGrain,
                   [&](Int begin, Int end) { std::fill(dweight + begin, dweight + end, 0.0f); });
}

// The first one: exponentials of class c are stored in the first bytes of dweight's row c.
void HeadCall::run_held_chunk(Int held) {
  const Int stride = shape_.width * Int{sizeof(float)} / tiling_->exponential_bytes;
  const Int most_rows = even_rows(held, tiling_->rows, kRowUnit);
  for (Int first = 0; first < held; first += most_rows) {
    const Int rows = std::min(most_rows, held - first);
    turned_ = {weight_gradient_row(0) + first * tiling_->exponential_bytes, stride};
    run_rows(first, rows);
    keep_x(first, rows, held);
  }
  turned_.data = weight_gradient_row(0);
  weight_gradient(0, held, false);
}

// A later chunk, or one of a call that adds.
void HeadCall::run_chunk(Int first, Int rows) {
  run_rows(first, rows);
  if (!shape_.with_weight_gradient) return;
  keep_x(0, rows, rows);
  weight_gradient(first, rows, first > 0 || adds(args_, 2));
}

// Losses, dx and exponentials.
void HeadCall::run_rows(Int first, Int rows) {
  const Int blocks =  // as many for each thread
      round_up(ceil_div(rows, tiling_->block_rows),
               tiling_->packs_apart ? tiling_->lanes : team().num_threads());
  const Chunk chunk{
      .first = first,
      .rows = rows,
      .block_rows = std::min(tiling_->block_rows, round_up(ceil_div(rows, blocks), kRowUnit))};
  for_rows(chunk, [&](Int r) { start_row(first, r); });
  take_rows(first, rows);
  if (is_of_rows_) {
    run_steps(chunk, &HeadCall::exponentials_and_largest);
    for (Int r = 0; r < rows; ++r)
      args_.outputs[1].as<float>()[space_->live[first + r]] = space_->of_label[r] - largest_of(r);
  } else {
    run_steps(chunk, &HeadCall::exponentials);
  }
  if (find_misfits(rows)) {
    run_steps(chunk, &HeadCall::find_largest);
    for (Int r = 0; r < rows; ++r)
      if (const float largest = largest_of(r); largest < kInfinity)
        space_->shift[r] = std::max(largest, space_->of_label[r]);
    run_steps(chunk, &HeadCall::exponentials);
  }
  for_rows(chunk, [&](Int r) { finish_row(first, r); });
}

template <class Body>
void HeadCall::for_rows(const Chunk& chunk, Body&& body) const {
  team().for_range(chunk.rows, kRowUnit, [&](Int begin, Int end) {
    for (Int r = begin; r < end; ++r) body(r);
  });
}

void HeadCall::start_row(Int first, Int r) {
  const std::byte* x =
      args_.inputs[0].data + space_->live[first + r] * shape_.width * element_bytes();
  space_->of_label[r] = space_->shift[r] =
      stage_.copy_row(x, weight(label_of(first + r)), shape_.stored, shape_.width,
                      {space_->x, tiling_->operand, tiling_->x_stride}, copy_of(first, r));
  set_largest(r, -kInfinity);
}

// The sum over all parts, for a row of the chunk.
double HeadCall::sum_of(Int r) const {
  double sum = 0;
  for (Int part = 0; part < tiling_->parts; ++part) sum += space_->sums[at(part, r)];
  return sum;
}

float HeadCall::largest_of(Int r) const {
  float largest = -kInfinity;
  for (Int part = 0; part < tiling_->parts; ++part)
    largest = std::max(largest, space_->largest[at(part, r)]);
  return largest;
}

void HeadCall::set_largest(Int r, float to) {
  for (Int part = 0; part < tiling_->parts; ++part) space_->largest[at(part, r)] = to;
}

// Rows that fit keep an infinity, and their shift, while the largest logits are sought.
bool HeadCall::find_misfits(Int rows) {
  bool any = false;
  for (Int r = 0; r < rows; ++r) {
    const bool fits = sum_of(r) <= kMostSum;
    set_largest(r, fits ? kInfinity : -kInfinity);
    any |= !fits;
  }
  return any;
}

Int HeadCall::part_end(Int part) const {
  return std::min(part_begin(part) + tiling_->part_columns, shape_.classes);
}

std::byte* HeadCall::step_panels(const Stretch& stretch, Int column) const {
  return stretch.panels + (column - stretch.begin) / tiling_->step_columns * tiling_->step_bytes;
}

// body(stretch) for each one of a part, packed at `panels`.
template <class Body>
void HeadCall::for_stretches(Int part, std::byte* panels, Body&& body) const {
  const Int end = part_end(part), columns = tiling_->stretch_columns();
  for (Int begin = part_begin(part); begin < end; begin += columns)
    body(Stretch{part, begin, std::min(end, begin + columns), panels});
}

// All steps of the blocks that have a row to compute: one whose `largest` is below infinity.
void HeadCall::run_steps(const Chunk& chunk, Use use) {
  if (tiling_->packs_apart) {
    team().run([&](int thread) { run_steps_of(thread, chunk, use); });
  } else {
    for (Int part = 0; part < tiling_->parts; ++part) run_steps_together(part, chunk, use);
  }
  is_packed_ = tiling_->parts == 1 && tiling_->stretch_columns() >= shape_.classes;
}

// The steps of one thread's blocks, in its parts, from its own packing.
void HeadCall::run_steps_of(int thread, const Chunk& chunk, Use use) {
  const Int num_blocks = ceil_div(chunk.rows, chunk.block_rows), lanes = tiling_->lanes;
  std::byte* panels = space_->weight_panels + thread * tiling_->stretch_bytes();
  for (Int part = thread / lanes; part < tiling_->parts; part += team().num_threads() / lanes)
    for_stretches(part, panels, [&](const Stretch& stretch) {
      if (!is_packed_) pack_stretch(stretch, stretch.begin, stretch.end);
      for (Int block = thread % lanes; block < num_blocks; block += lanes)
        run_block(chunk, block, stretch, block + lanes >= num_blocks, thread, use);
    });
}

void HeadCall::run_steps_together(Int part, const Chunk& chunk, Use use) {
  device::ThreadTeam& team = *args_.launch.team;
  for_stretches(part, space_->weight_panels, [&](const Stretch& stretch) {
    if (!is_packed_)
      team.for_range(stretch.end - stretch.begin, tiling_->pack_unit, [&](Int begin, Int end) {
        pack_stretch(stretch, stretch.begin + begin, stretch.begin + end);
      });
    team.for_tasks(ceil_div(chunk.rows, chunk.block_rows), [&](Int block, int thread) {
      run_block(chunk, block, stretch, false, thread, use);
    });
  });
}

void HeadCall::pack_stretch(const Stretch& stretch, Int begin, Int end) const {
  for (Int column = begin; column < end;) {
    const Int of_step = stretch.begin +
                        (column - stretch.begin) / tiling_->step_columns * tiling_->step_columns,
              step_end = std::min(of_step + tiling_->step_columns, stretch.end),
              next = std::min(step_end, end);
    pack(step_panels(stretch, column), of_step, step_end - of_step, column, next);
    column = next;
  }
}

// `is_last`: what the thread does next is to pack the next stretch.
void HeadCall::run_block(const Chunk& chunk, Int block, const Stretch& stretch, bool is_last,
                         int thread, Use use) {
  const Int begin = block * chunk.block_rows;
  const Int end = std::min(chunk.rows, begin + chunk.block_rows);
  const float* largest = space_->largest + at(stretch.part, 0);
  if (std::none_of(largest + begin, largest + end, [](float of) { return of < kInfinity; })) return;
  for (Int column = stretch.begin; column < stretch.end; column += tiling_->step_columns) {
    Step step{.part = stretch.part,
              .begin = begin,
              .end = end,
              .column = column,
              .columns = std::min(tiling_->step_columns, stretch.end - column),
              .panels = step_panels(stretch, column),
              .thread = thread,
              .logits = logits_at(stretch.part, begin, end, thread)};
    if (is_last && column + tiling_->step_columns >= stretch.end) {
      const Int next = std::min(tiling_->stretch_columns(), part_end(stretch.part) - stretch.end);
      step.logits.ahead = weight(stretch.end);
      step.logits.ahead_bytes = next * shape_.width * element_bytes();
    }
    run_step(chunk.first, step, use);
  }
}

// The logits of rows [begin, end) of a chunk, in the thread's space.
HeadLogits HeadCall::logits_at(Int part, Int begin, Int end, int thread) const {
  return {.logits = reinterpret_cast<float*>(thread_space(thread)),
          .stride = tiling_->step_stride,
          .rows = end - begin,
          .columns = 0,
          .shift = space_->shift + begin,
          .sums = space_->sums + at(part, begin),
          .rounded = nullptr,
          .rounded_stride = tiling_->rounded_stride};
}

void HeadCall::run_step(Int first, Step& step, Use use) {
  step.logits.columns = step.columns;
  multiply_logits(step);
  for (Int r = step.begin; r < step.end; ++r)  // the label's own term is added apart
    if (const Int j = label_of(first + r) - step.column; 0 <= j && j < step.columns)
      step.logits.logits[(r - step.begin) * tiling_->step_stride + j] = -kInfinity;
  (this->*use)(step);
}

void HeadCall::find_largest(Step& step) {
  stage_.largest(step.logits, space_->largest + at(step.part, step.begin));
}

void HeadCall::exponentials_and_largest(Step& step) {
  find_largest(step);
  exponentials(step);
}

void HeadCall::exponentials(Step& step) {
  const bool is_first = step.column == part_begin(step.part);
  if (is_first) std::fill_n(step.logits.sums, step.logits.rows, 0.0);
  if (shape_.with_weight_gradient) {
    step.logits.turned =
        turned_.data + (step.column * turned_.stride + step.begin) * tiling_->exponential_bytes;
    step.logits.turned_dtype = shape_.dtype;
    step.logits.turned_stride = turned_.stride;
  }
  use_logits(step, is_first);
}

void HeadCall::finish_row(Int first, Int r) {
  const Int token = space_->live[first + r], label = of_rows_.labels[token];
  const double row_weight = of_rows_.weight(token);
  const double below = static_cast<double>(space_->of_label[r]) - space_->shift[r];
  const double sum = sum_of(r), of_label = std::exp(below), total = sum + of_label;
  space_->losses[first + r] =
      row_weight * (of_label > 1e-20 ? std::log1p(sum / of_label) : std::log(total) - below);
  if (!shape_.with_input_gradient) return;
  const double seed = seed_ * row_weight;
  const auto factor = static_cast<float>(seed / total),
             label_factor = static_cast<float>(seed * (sum / total));
  const TensorView& dx = args_.outputs[1];
  stage_.input_gradient({.dx = dx.data + token * shape_.width * size_bytes(dx.type->dtype),
                         .dx_dtype = dx.type->dtype,
                         .accumulate = adds(args_, 1),
                         .sums = input_gradient(0, r),
                         .more_sums = tiling_->parts > 1 ? input_gradient(1, r) : nullptr,
                         .factor = factor,
                         .label_factor = label_factor},
                        weight(label), shape_.stored, shape_.width);
  if (shape_.with_weight_gradient) keep_row(first, r, sum, factor, label_factor);
}

void HeadCall::multiply(const Gemm& gemm, int thread) const {
  const Blocking most = engine_.blocking(gemm);
  for (Int j = 0; j < gemm.columns; j += most.columns)
    for (Int i = 0; i < gemm.rows; i += most.rows)
      engine_.compute(gemm,
                      {.row_begin = i,
                       .row_end = std::min(gemm.rows, i + most.rows),
                       .column_begin = j,
                       .column_end = std::min(gemm.columns, j + most.columns)},
                      engine_space(thread));
}

}  // namespace anabatic::kernels::cpu::head
