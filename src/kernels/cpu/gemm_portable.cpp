// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_block.h"

namespace anabatic::kernels::cpu {
namespace {

// Four lanes: what every 64-bit target has.
struct Portable {
  using Unit = float;
  typedef float Vector __attribute__((vector_size(16), may_alias));
  using Packed = Vector;
  static constexpr Int kLanes = 4, kRows = 4, kVectors = 2, kPackBytes = 128 << 10;

  static Vector zero() { return Vector{}; }
  static Packed load(const float* from) { return *reinterpret_cast<const Packed*>(from); }
  static Packed broadcast(const float* from) { return Packed{} + *from; }
  static Vector multiply_add(Vector sum, Packed a, Packed b) { return sum + a * b; }
  static void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

  template <class T>
  static void transpose(float* to, const T* from, Int stride) {
    for (Int j = 0; j < kLanes; ++j)
      for (Int k = 0; k < kLanes; ++k) to[k * kLanes + j] = as_float(from[j * stride + k]);
  }
};

constexpr GemmEngine kEngine{.isa = nullptr,
                             .accepts = [](DType, DType) { return true; },
                             .blocking = &GemmBlock<Portable>::blocking,
                             .workspace_bytes = &GemmBlock<Portable>::workspace_bytes,
                             .compute = &GemmBlock<Portable>::compute};

}  // namespace

const GemmEngine* gemm_portable() { return &kEngine; }

}  // namespace anabatic::kernels::cpu
