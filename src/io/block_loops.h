// SPDX-License-Identifier: Apache-2.0
// Conversions of whole tensors to and from f32. They are compiled once for each instruction set,
// and all of them give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace anabatic::io {

struct BlockLoops {
  using From = void (*)(const std::byte* blocks, std::int64_t num_blocks, float* values);
  using To = void (*)(const float* values, std::int64_t num_blocks, std::byte* blocks);

  // Blocks of f16 and bf16 are single elements. Bytes may lie at any alignment.
  From from_f16, from_bf16;
  To to_f16, to_bf16, to_q8_0, to_q4_0;
  // The largest magnitude of those that are finite; 0 if none is.
  float (*largest_finite)(const float* values, std::int64_t count);
};

extern const BlockLoops kPortableLoops;
extern const BlockLoops kAvx2Loops, kAvx512Loops;  // on x86-64

// Those of the widest instruction set that the machine has and ANABATIC_MAX_ISA allows.
const BlockLoops& block_loops();

}  // namespace anabatic::io
