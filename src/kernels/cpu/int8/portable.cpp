// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/block.h"

namespace anabatic::kernels::cpu {
namespace {

// One row by one panel: plain loops.
struct Int8Portable {
  static constexpr Int kRows = 1, kPanels = 1;
  static constexpr bool kRounds = false;

  static void add_block(const Int8Tile& in, Int k, const std::int8_t* a, const std::int8_t* b,
                        std::int32_t* sums) {
    a += k * kBlockUnits * in.a_unit;
    b += k * kInt8Block * kInt8Panel;
    for (Int n = 0; n < kInt8Panel; ++n) sums[n] = 0;
    for (Int u = units_of_block(in.units, k); u > 0; --u) {
      for (Int n = 0; n < kInt8Panel; ++n)
        for (Int e = 0; e < kInt8Unit; ++e)
          sums[n] += (in.a_is_unsigned ? a[e] & 0xFF : a[e]) * b[n * kInt8Unit + e];
      a += in.a_unit;
      b += kInt8Panel * kInt8Unit;
    }
  }

  static void run(const Int8Tile& in) {
    float chain[kInt8Panel] = {};
    for (Int n = 0; n < kInt8Panel && in.from != nullptr; ++n) chain[n] = in.from[n];
    std::int32_t sums[kInt8Panel];
    for (Int k = 0; k * kBlockUnits < in.units; ++k) {
      const BFloat16* b_scales = in.b_scales[0] + k * in.b_scale_block;
      float scales[kInt8Panel];
      for (Int n = 0; n < kInt8Panel; ++n)
        scales[n] = widen(in.a_scales[k * in.a_scale_block].bits) *
                    widen(b_scales[in.b_has_tiles ? 0 : n].bits);
      add_block(in, k, in.a, in.b, sums);
      for (Int n = 0; n < kInt8Panel; ++n)
        chain[n] = __builtin_fmaf(static_cast<float>(sums[n]), scales[n], chain[n]);
      const unsigned falls_back = falling_columns(in, k, 0);
      if (falls_back == 0) continue;
      add_block(in, k, in.a_second != nullptr ? in.a_second : in.a,
                in.b_second != nullptr ? in.b_second : in.b, sums);
      for (Int n = 0; n < kInt8Panel; ++n)
        if ((falls_back >> n & 1u) != 0)
          chain[n] =
              __builtin_fmaf(static_cast<float>(sums[n]), scales[n] * kSecondScale, chain[n]);
    }
    for (Int n = 0; n < kInt8Panel; ++n) in.to[n] = chain[n];
  }

  static TileFunction tile(int, int) { return &run; }
  static void narrow(std::uint16_t* to, const float* from) {
    for (Int n = 0; n < kInt8Panel; ++n) to[n] = cpu::narrow(from[n]);
  }
  static void stream(float* to, const float* from) {
    for (Int n = 0; n < kInt8Panel; ++n) to[n] = from[n];
  }
  static void end_stream() {}
};

constexpr GemmEngine kInt8Engine = int8_engine<Int8Portable>(nullptr, &portable::int8_coding);

}  // namespace

const GemmEngine* gemm_int8_portable() { return &kInt8Engine; }

}  // namespace anabatic::kernels::cpu
