// SPDX-License-Identifier: Apache-2.0
// One task list for a group of products that share their shapes but for one ragged dimension.
#pragma once
#include <algorithm>

#include "base/rounding.h"
#include "device/thread_team.h"
#include "kernels/cpu/gemm.h"

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
  const std::int64_t tasks_per_thread = largest.b.is_packed ? 8 : 4;
  const Blocking most = bounded_blocking(engine, largest, column_multiple);
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
  if (num_products == 1 && largest.b.is_packed && num_tasks() >= 4 * num_threads) {
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

// Cuts `num_groups` products into blocks, spread over the team: body(group, gemm, block, thread).
// `make(group)` fills in one of them; `largest` bounds all.
template <class MakeGemm, class Body>
void for_blocks(const GemmEngine& engine, const Gemm& largest, std::int64_t num_groups,
                MakeGemm&& make, device::ThreadTeam& team, std::int64_t column_multiple,
                Body&& body) {
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

// Computes them all. `workspace` holds engine.workspace_bytes(largest) for every thread of the
// team.
template <class MakeGemm>
void run_gemms(const GemmEngine& engine, const Gemm& largest, std::int64_t num_groups,
               MakeGemm&& make, device::ThreadTeam& team, std::byte* workspace) {
  const std::int64_t part = engine.workspace_bytes(largest);
  for_blocks(engine, largest, num_groups, make, team, 0,
             [&](std::int64_t, const Gemm& gemm, const Block& block, int thread) {
               engine.compute(gemm, block, workspace + thread * part);
             });
}

}  // namespace anabatic::kernels::cpu
