// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/sparse/two_of_four_tiles.h"

namespace anabatic::kernels::cpu {
namespace {

// Four lanes: what every 64-bit target has.
struct Portable {
  using Unit = float;
  typedef float Vector __attribute__((vector_size(16), may_alias));
  typedef std::uint32_t Words __attribute__((vector_size(16), may_alias));
  using Packed = Vector;
  static constexpr Int kLanes = 4, kRows = 2, kVectors = 4, kSquare = 4;
  static constexpr Int kFloatDepth = 256, kPairDepth = 512;
  static constexpr Int kBlockRows = 96, kPackedColumns = 512, kColumns = 256;
  static constexpr Int kGradientRows = 144, kGradientColumns = 256, kGradientDepth = 256;

  static Vector zero() { return Vector{}; }
  static Packed load(const float* from) { return *reinterpret_cast<const Packed*>(from); }
  static Packed load(const Float16* from) {
    Packed result;
    for (int i = 0; i < kLanes; ++i) result[i] = as_float(from[i]);
    return result;
  }
  // The first and the second elements of four pairs.
  static Packed low(const std::uint32_t* from) {
    return reinterpret_cast<Packed>(*reinterpret_cast<const Words*>(from) << 16);
  }
  static Packed high(const std::uint32_t* from) {
    return reinterpret_cast<Packed>(*reinterpret_cast<const Words*>(from) & 0xFFFF0000u);
  }
  static Packed broadcast(const float* from) { return Packed{} + *from; }
  static Vector multiply_add(Vector sum, Packed a, Packed b) { return sum + a * b; }
  static Vector load_sums(const float* from) {
    Vector value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
  static void store_sums(float* to, Vector value) { __builtin_memcpy(to, &value, sizeof value); }

  // Four elements of a row; for each line one of them.
  using Control = Words;
  static Packed broadcast_four(const float* from) { return load_sums(from); }
  static Control load_control(const std::uint32_t* from) {
    return *reinterpret_cast<const Words*>(from);
  }
  static Packed pick(Packed four, Control control) { return __builtin_shuffle(four, control); }

  static void stream(float* to, const float* from) {
    __builtin_memcpy(to, from, kPanel * sizeof(float));
  }
  static void end_stream() {}

  static void narrow(std::uint16_t* to, const float* from) {
    for (Int n = 0; n < kPanel; ++n) to[n] = cpu::narrow(from[n]);
  }
  static void transpose(void* to, const std::byte* from, Int stride) {
    for (Int j = 0; j < kPanel; ++j)
      for (Int k = 0; k < kSquare; ++k)
        __builtin_memcpy(static_cast<std::byte*>(to) + (k * kPanel + j) * 4,
                         from + j * stride + k * 4, 4);
  }
};

constexpr GemmEngine kEngine{.isa = nullptr,
                             .accepts = [](DType, DType) { return true; },
                             .blocking = &GemmBlock<Portable>::blocking,
                             .sum_terms = &GemmBlock<Portable>::sum_terms,
                             .workspace_bytes = &GemmBlock<Portable>::workspace_bytes,
                             .compute = &GemmBlock<Portable>::compute,
                             .drop = &portable::drop_columns,
                             .blocks = &BlockSides<Portable>::kEngine};

}  // namespace

const GemmEngine* gemm_portable() { return &kEngine; }

}  // namespace anabatic::kernels::cpu
