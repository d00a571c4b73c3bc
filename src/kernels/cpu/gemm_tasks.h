// SPDX-License-Identifier: Apache-2.0
// One task list for a group of products that share their shapes but for one ragged dimension.
#pragma once
#include <algorithm>

#include "device/thread_team.h"
#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu {

// The largest block that gives every thread work. Results do not depend on it.
inline Blocking task_blocking(const GemmEngine& engine, const Gemm& largest,
                              std::int64_t total_rows, int num_threads) {
  constexpr std::int64_t kMinRows = 32, kMinColumns = 48, kTasksPerThread = 3;
  Blocking size = engine.blocking(largest);
  const auto num_tasks = [&] {
    return ((total_rows + size.rows - 1) / size.rows) *
           ((largest.columns + size.columns - 1) / size.columns);
  };
  while (num_tasks() < kTasksPerThread * num_threads && num_threads > 1) {
    // A narrow block reads A more often, a low one packs B more often, which costs more.
    if (size.columns >= 2 * kMinColumns && largest.columns > kMinColumns) {
      size.columns = (std::min(size.columns, largest.columns) / 2 + kMinColumns - 1) / kMinColumns *
                     kMinColumns;
      if (size.columns * 2 > largest.columns && size.columns >= largest.columns) break;
      if (size.columns > kMinColumns) continue;
    }
    if (size.rows < 2 * kMinRows) break;
    size.rows /= 2;
  }
  return size;
}

// Runs the blocks of `num_groups` products. `shapes(group)` fills in one of them; `largest` bounds
// all; `total_rows` is the sum of their rows. `workspace` holds engine.workspace_bytes(largest) for
// every thread of the team.
template <class MakeGemm>
void run_gemms(const GemmEngine& engine, const Gemm& largest, std::int64_t num_groups,
               std::int64_t total_rows, MakeGemm&& make, device::ThreadTeam& team,
               std::byte* workspace) {
  const std::int64_t part = engine.workspace_bytes(largest);
  const Blocking size = task_blocking(engine, largest, total_rows, team.num_threads());
  const auto num_blocks = [](std::int64_t count, std::int64_t step) {
    return (count + step - 1) / step;
  };
  std::int64_t num_tasks = 0;
  for (std::int64_t g = 0; g < num_groups; ++g) {
    const Gemm gemm = make(g);
    num_tasks += num_blocks(gemm.rows, size.rows) * num_blocks(gemm.columns, size.columns);
  }
  team.for_tasks(num_tasks, [&](std::int64_t task, int thread) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      const Gemm gemm = make(g);
      const std::int64_t row_blocks = num_blocks(gemm.rows, size.rows);
      const std::int64_t count = row_blocks * num_blocks(gemm.columns, size.columns);
      if (task >= count) {
        task -= count;
        continue;
      }
      const std::int64_t i = task % row_blocks * size.rows, j = task / row_blocks * size.columns;
      engine.compute(gemm,
                     {.row_begin = i,
                      .row_end = std::min(gemm.rows, i + size.rows),
                      .column_begin = j,
                      .column_end = std::min(gemm.columns, j + size.columns)},
                     workspace + thread * part);
      return;
    }
  });
}

}  // namespace anabatic::kernels::cpu
