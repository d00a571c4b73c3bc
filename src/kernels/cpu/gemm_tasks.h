// SPDX-License-Identifier: Apache-2.0
// One task list for a group of products that share their shapes but for one ragged dimension.
#pragma once
#include <algorithm>
#include <optional>

#include "base/rounding.h"
#include "device/thread_team.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/int8/operands.h"
#include "spec/dropout.h"

namespace anabatic::kernels::cpu {

// `count` cut into as few parts as `most` allows, as even as multiples of `step` can be.
inline std::int64_t even_part(std::int64_t count, std::int64_t most, std::int64_t step) {
  if (count <= 0) return step;
  return round_up(ceil_div(count, ceil_div(count, most)), step);
}

// The engine's largest blocks, whose columns begin at multiples of `column_multiple` too (0: of
// whatever suits the engine), a multiple of its step.
inline Blocking bounded_blocking(const GemmEngine& engine, const Gemm& largest,
                                 std::int64_t column_multiple) {
  Blocking size = engine.blocking(largest);
  if (column_multiple > 0) {
    size.column_step = column_multiple;
    size.columns = std::max(size.columns / column_multiple, std::int64_t{1}) * column_multiple;
  }
  return size;
}

// The largest block that gives every thread work. Results do not depend on it. `total_rows` is the
// sum of the products' rows.
inline Blocking task_blocking(const GemmEngine& engine, const Gemm& largest,
                              std::int64_t num_products, std::int64_t total_rows, int num_threads,
                              std::int64_t column_multiple = 0) {
  constexpr std::int64_t kMinColumns = 96;
  // Small tasks even the threads out, but each packs its own block of B.
  const bool packs = !largest.b.is_packed && engine.coding == nullptr;
  const std::int64_t tasks_per_thread = packs ? 4 : 8;
  Blocking most = bounded_blocking(engine, largest, column_multiple);
  // A block of a weight gradient draws the bits of whole blocks of x's columns.
  const bool draws_columns = largest.a.dropout.draws != nullptr && largest.a.row_stride == 1;
  if (draws_columns) {
    most.row_step = round_up(spec::kDropoutColumns, most.row_step);
    most.rows = std::max(most.rows / most.row_step, std::int64_t{1}) * most.row_step;
  }
  Blocking size = most;
  const auto num_tasks = [&] {
    return ceil_div(total_rows, size.rows) * ceil_div(largest.columns, size.columns);
  };
  size.columns = std::min(size.columns, std::max<std::int64_t>(largest.columns, 1));
  const auto with_even_columns = [&] {
    size.columns =
        std::min(even_part(largest.columns, size.columns, size.column_step), most.columns);
    return size;
  };
  // If a single product has blocks for all threads, each thread gets the same number.
  if (num_products == 1 && !packs && num_tasks() >= 4 * num_threads) {
    const std::int64_t parts = round_up(ceil_div(total_rows, size.rows), num_threads);
    size.rows = even_part(total_rows, ceil_div(total_rows, parts), size.row_step);
    return with_even_columns();
  }
  while (num_threads > 1 && num_tasks() < tasks_per_thread * num_threads) {
    // A narrow block copies A more often, a low one reads (or packs) B more often.
    if (size.rows > size.columns && size.rows >= 4 * size.row_step)
      size.rows /= 2;
    else if (size.columns >= 2 * kMinColumns)
      size.columns /= 2;
    else if (size.rows >= 4 * size.row_step)
      size.rows /= 2;
    else
      break;
  }
  size.rows = std::max(size.rows / size.row_step, std::int64_t{1}) * size.row_step;
  return with_even_columns();
}

// The workspace that all threads of for_blocks share, if no two groups have an operand in common.
// `whole` has all rows, or in a weight gradient the whole depth.
inline std::int64_t shared_bytes(const GemmEngine& engine, const Gemm& whole,
                                 std::int64_t num_groups) {
  return engine.coding == nullptr ? 0 : int8_bytes(whole, num_groups);
}

// Cuts `num_groups` products into blocks, spread over the team: body(group, gemm, block, thread).
// `make_gemm(group)` fills in one of them; `largest` bounds all. `shared` has shared_bytes.
template <class MakeGemm, class Body>
void for_blocks(const GemmEngine& engine, const Gemm& largest, std::int64_t num_groups,
                MakeGemm&& make_gemm, device::ThreadTeam& team, std::int64_t column_multiple,
                std::byte* shared, Body&& body) {
  std::optional<Int8OperandCoding> operands;
  if (engine.coding != nullptr) {
    operands.emplace(shared, num_groups, 1 + largest.num_further);
    for (std::int64_t g = 0; g < num_groups; ++g) operands->add(make_gemm(g), g);
    operands->run(engine.coding(), team, largest.counts);
  }
  const auto make = [&](std::int64_t group) {
    Gemm gemm = make_gemm(group);
    if (operands) gemm.coded = operands->of(group);
    return gemm;
  };
  std::int64_t total_rows = 0;
  for (std::int64_t g = 0; g < num_groups; ++g) total_rows += make(g).rows;
  const Blocking size =
      task_blocking(engine, largest, num_groups, total_rows, team.num_threads(), column_multiple);
  std::int64_t num_tasks = 0;
  for (std::int64_t g = 0; g < num_groups; ++g) {
    const Gemm& gemm = make(g);
    num_tasks += ceil_div(gemm.rows, size.rows) * ceil_div(gemm.columns, size.columns);
  }
  // A thread's tasks ascend, so it looks for the next one where it found the last.
  struct alignas(64) Cursor {
    std::int64_t group = 0, first_task = 0;
  };
  constexpr int kMostCursors = 64;
  Cursor cursors[kMostCursors];
  team.for_tasks(num_tasks, [&](std::int64_t task, int thread) {
    Cursor none;
    Cursor& at = thread < kMostCursors ? cursors[thread] : none;
    task -= at.first_task;
    for (std::int64_t g = at.group; g < num_groups; ++g) {
      const Gemm& gemm = make(g);
      const std::int64_t row_blocks = ceil_div(gemm.rows, size.rows);
      const std::int64_t count = row_blocks * ceil_div(gemm.columns, size.columns);
      if (task >= count) {
        task -= count;
        at = {g + 1, at.first_task + count};
        continue;
      }
      const std::int64_t rows = even_part(gemm.rows, size.rows, size.row_step);
      const std::int64_t i = task % row_blocks * rows, j = task / row_blocks * size.columns;
      if (i >= gemm.rows) return;  // the even parts left nothing for the last one
      body(g, gemm,
           Block{.row_begin = i,
                 .row_end = std::min(gemm.rows, i + rows),
                 .column_begin = j,
                 .column_end = std::min(gemm.columns, j + size.columns)},
           thread);
      return;
    }
  });
}

// What each thread of run_gemms has, then what they share.
inline std::int64_t threads_bytes(const GemmEngine& engine, const Gemm& largest, int num_threads) {
  return round_up(engine.workspace_bytes(largest) * num_threads, std::int64_t{64});
}

// Computes them all. `workspace` holds threads_bytes(largest), then shared_bytes.
template <class MakeGemm>
void run_gemms(const GemmEngine& engine, const Gemm& largest, std::int64_t num_groups,
               MakeGemm&& make, device::ThreadTeam& team, std::byte* workspace) {
  const std::int64_t part = engine.workspace_bytes(largest);
  std::byte* shared = workspace + threads_bytes(engine, largest, team.num_threads());
  for_blocks(engine, largest, num_groups, make, team, 0, shared,
             [&](std::int64_t, const Gemm& gemm, const Block& block, int thread) {
               engine.compute(gemm, block, workspace + thread * part);
             });
}

}  // namespace anabatic::kernels::cpu
