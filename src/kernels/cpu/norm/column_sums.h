// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of a call, column by column: gradients of what all rows share.
#pragma once
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/vector_pairs.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// Whole pairs from load_pair's order of T to the plain one.
template <class T>
void unpair(float* x, std::int64_t width) {
  if constexpr (sizeof(T) == sizeof(float)) return;
  for (std::int64_t i = 0; i + kPair <= width; i += kPair) {
    float plain[kPair];
    for (int j = 0; j < kLanes; ++j) {
      plain[2 * j] = x[i + j];
      plain[2 * j + 1] = x[i + kLanes + j];
    }
    std::copy(plain, plain + kPair, x + i);
  }
}

// Every output is f32[width]. Sums rows by fixed blocks, then the blocks in ascending order, in
// double. add_row(row, partial) adds one row to partial[outputs, width], finish(partial) ends a
// block. Workspace: column_partials_workspace_bytes.
template <class AddRow, class Finish>
void sum_by_blocks(const Arguments& args, std::int64_t num_rows, std::int64_t width,
                   AddRow&& add_row, Finish&& finish) {
  float* partials = reinterpret_cast<float*>(args.workspace);
  const std::int64_t num_blocks = ceil_div(num_rows, kRowBlock),
                     of_block = width * static_cast<std::int64_t>(args.outputs.size());
  args.launch.team->for_tasks(num_blocks, [&](std::int64_t block) {
    float* partial = partials + block * of_block;
    std::fill(partial, partial + of_block, 0.0f);
    const std::int64_t end = std::min(num_rows, (block + 1) * kRowBlock);
    for (std::int64_t row = block * kRowBlock; row < end; ++row) add_row(row, partial);
    finish(partial);
  });
  for (std::size_t o = 0; o < args.outputs.size(); ++o) {
    const float* first = partials + static_cast<std::int64_t>(o) * width;
    float* out = args.outputs[o].as<float>();
    const bool add = adds(args, o);
    args.launch.team->for_range(width, 4 * kLanes, [&](std::int64_t begin, std::int64_t end) {
      for_lanes(begin, end, [&](std::int64_t i, int n) {
        WideSums sums;
        for (std::int64_t block = 0; block < num_blocks; ++block)
          sums.add(load(first + block * of_block + i, n));
        store(out + i, add ? load(out + i, n) + sums.rounded() : sums.rounded(), n);
      });
    });
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
