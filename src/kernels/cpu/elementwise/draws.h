// SPDX-License-Identifier: Apache-2.0
// What all draws of one call of dropout have in common, and dropout of a part of one row. Kernels
// of several instruction sets share the struct, so its functions are always inline.
#pragma once
#include <cstdint>

#include "spec/dropout.h"
#include "tensor/dtype.h"

namespace anabatic::kernels::cpu {

// A call's key of each round, its stream, threshold and scale.
struct Draws {
  static constexpr int kRounds = 10;

  std::uint64_t keys[kRounds][2];
  std::uint64_t site_low, site_high;
  std::uint32_t first_row, threshold;
  float scale;

  // `draws` is i32[3] (spec::kDropoutDraws).
  __attribute__((always_inline)) Draws(const std::int32_t* draws, std::uint64_t stream, double rate)
      : first_row(static_cast<std::uint32_t>(draws[spec::kDropoutRow])),
        threshold(static_cast<std::uint32_t>(spec::dropout_threshold(rate))),
        scale(spec::dropout_scale(rate)) {
    auto low = static_cast<std::uint32_t>(draws[spec::kDropoutKeyLow]),
         high = static_cast<std::uint32_t>(draws[spec::kDropoutKeyHigh]);
    for (auto& of_round : keys) {
      of_round[0] = low;
      of_round[1] = high;
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    set_stream(stream);
  }

  __attribute__((always_inline)) void set_stream(std::uint64_t stream) {
    site_low = stream & 0xFFFFFFFFu;
    site_high = stream >> 32;
  }
};

// Columns [column, column + count) of row `row` of the call, which lie at `x`, to y as `dropout`
// gives them; y may be x. f32 or bf16. In elementwise/dropout.cpp.
namespace avx512 {
void drop_columns(const Draws& draws, std::int64_t row, std::int64_t column, std::int64_t count,
                  DType dtype, const std::byte* x, std::byte* y);
}
namespace avx2 {
void drop_columns(const Draws& draws, std::int64_t row, std::int64_t column, std::int64_t count,
                  DType dtype, const std::byte* x, std::byte* y);
}
namespace portable {
void drop_columns(const Draws& draws, std::int64_t row, std::int64_t column, std::int64_t count,
                  DType dtype, const std::byte* x, std::byte* y);
}

}  // namespace anabatic::kernels::cpu
