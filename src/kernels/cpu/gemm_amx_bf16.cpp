// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AMX_BF16__)
#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/words_avx512.h"

namespace anabatic::kernels::cpu {
namespace {

// Transposes 32 elements from `at` on of each pair of lines, lines[2p] and lines[2p + 1]:
// [element][pair], rows `stride` words apart. Elements beyond `count` are not read, and not
// written.
inline void transpose_pairs(std::uint32_t* to, Int stride, const std::uint16_t* const* lines,
                            int num_lines, Int at, Int count) {
  const auto mask = static_cast<__mmask32>(count >= 32 ? ~0u : (1u << count) - 1);
  // unpacklo takes elements 0 to 3 of each 128 bits, unpackhi elements 4 to 7.
  __m512i low[16], high[16];
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) {
    const __m512i none = _mm512_setzero_si512();
    const __m512i first =
        2 * p < num_lines ? _mm512_maskz_loadu_epi16(mask, lines[2 * p] + at) : none;
    const __m512i second =
        2 * p + 1 < num_lines ? _mm512_maskz_loadu_epi16(mask, lines[2 * p + 1] + at) : none;
    low[p] = _mm512_unpacklo_epi16(first, second);
    high[p] = _mm512_unpackhi_epi16(first, second);
  }
  transpose_16x16(low);
  transpose_16x16(high);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const Int row = i / 4 * 8 + i % 4;
    if (row < count) _mm512_store_si512(to + row * stride, low[i]);
    if (row + 4 < count) _mm512_store_si512(to + (row + 4) * stride, high[i]);
  }
}

// A register of A holds 16 rows of 16 pairs; one of B, 16 pairs of 16 columns: as a panel has them.
// TDPBF16PS sums the even and the odd elements of 16 pairs apart, from zero, and adds both to C.
struct AmxBf16 : PairWords {
  using Unit = std::uint32_t;
  using Vector = __m512;
  static constexpr Int kLanes = 16, kRows = 32, kVectors = 2, kSquare = 16;
  // The 32 columns of one tile stay in L1.
  static constexpr Int kFloatDepth = 2, kPairDepth = 512;
  static constexpr Int kBlockRows = 128, kPackedColumns = 512, kColumns = 256;
  static constexpr Int kGradientRows = 192, kGradientColumns = 512, kGradientDepth = 512;

  // Rows of A that lie along the depth: to [row][stride], pairs.
  static void copy_columns(Unit* to, Int stride, const Matrix& a, Int i0, Int rows, Int k0,
                           Int depth) {
    constexpr Int kLines = 32;
    alignas(64) std::uint16_t copies[kLines][kGradientRows];
    const auto* from = reinterpret_cast<const std::uint16_t*>(a.data) + i0;
    for (Int k = 0; k < depth; k += kLines) {
      const std::uint16_t* lines[kLines];
      const int num_lines = static_cast<int>(smaller(kLines, depth - k));
      for (int n = 0; n < num_lines; ++n) {
        const Int line = a.index.line(k0 + k + n);
        lines[n] = from + line * a.column_stride;
        if (!has_prologue(a)) continue;
        put_prologue(copies[n], lines[n], a, line, i0, rows);
        lines[n] = copies[n];
      }
      for (Int i = 0; i < rows; i += 32) {
        if (i + 32 < rows)
          for (int n = 0; n < num_lines; ++n) __builtin_prefetch(lines[n] + i + 32);
        transpose_pairs(to + i * stride + k / 2, stride, lines, num_lines, i, rows - i);
      }
    }
  }

  // The tile registers of this thread: C in 0 to 3, as two by two; A in 4 and 5; B in 6 and 7.
  class Tiles {
   public:
    // `call`: GemmBlock::TileCall; up to 32 rows and two panels.
    template <class Call>
    void multiply(const Call& call, Int rows, Int panels) {
      if (rows != rows_) configure(static_cast<int>(rows));
      if (rows > kRowsOfRegister)
        panels > 1 ? run<true, true>(call) : run<true, false>(call);
      else
        panels > 1 ? run<false, true>(call) : run<false, false>(call);
    }

    // Released registers are not saved when threads take turns. No destructor: what unwinds would
    // be shared with the rest of the program.
    void release() { _tile_release(); }

   private:
    static constexpr Int kRowsOfRegister = 16, kPairs = 16;

    // As LDTILECFG reads it.
    struct Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    };
    static_assert(sizeof(Config) == 64);

    void configure(int rows) {
      rows_ = rows;
      const auto upper = static_cast<std::uint8_t>(smaller(rows, 16));
      const auto lower = static_cast<std::uint8_t>(rows > 16 ? rows - 16 : 1);
      Config config;
      for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64;
      config.rows[0] = config.rows[1] = config.rows[4] = upper;
      config.rows[2] = config.rows[3] = config.rows[5] = lower;
      config.rows[6] = config.rows[7] = 16;
      asm volatile("" : : "m"(config));  // g++ 12 takes the next line for a read of eight bytes
      _tile_loadconfig(&config);
    }

    // g++ 12 does not say of loads of tiles that they read memory.
    static void end_stores() { asm volatile("" : : : "memory"); }

    // 16 pairs of the depth.
    template <bool kBothRows, bool kBothPanels>
    static __attribute__((always_inline)) void add(const void* a, Int a_bytes, const void* b,
                                                   const void* next_b) {
      _tile_loadd(6, b, 64);
      _tile_loadd(4, a, a_bytes);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kBothPanels) {
        _tile_loadd(7, next_b, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kBothRows) {
        _tile_loadd(5, static_cast<const std::byte*>(a) + kRowsOfRegister * a_bytes, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kBothPanels) _tile_dpbf16ps(3, 5, 7);
      }
    }

    template <bool kBothRows, bool kBothPanels>
    static void store(float* to, Int stride, Int panel_stride) {
      _tile_stored(0, to, stride * 4);
      if constexpr (kBothPanels) _tile_stored(1, to + panel_stride, stride * 4);
      if constexpr (kBothRows) {
        _tile_stored(2, to + kRowsOfRegister * stride, stride * 4);
        if constexpr (kBothPanels)
          _tile_stored(3, to + kRowsOfRegister * stride + panel_stride, stride * 4);
      }
    }

    // Fewer than 16 pairs of the depth, filled up with zeros.
    template <bool kBothRows, bool kBothPanels>
    __attribute__((noinline)) void add_rest(const Unit* a, const std::byte* b, Int panel_bytes,
                                            Int pairs) const {
      alignas(64) Unit rows[kRows * kPairs];
      alignas(64) Unit panels[2 * kPairs * kPanel];
      const auto mask = static_cast<__mmask32>((1u << 2 * pairs) - 1);  // of elements
      constexpr Int kStride = kInPlaceRowBytes / Int{sizeof(Unit)};
      for (Int r = 0; r < rows_; ++r)
        _mm512_store_si512(rows + r * kPairs, _mm512_maskz_loadu_epi16(mask, a + r * kStride));
      for (Int p = 0; p < (kBothPanels ? 2 : 1); ++p)
        for (Int k = 0; k < kPairs; ++k)
          _mm512_store_si512(panels + (p * kPairs + k) * kPanel,
                             k < pairs ? _mm512_loadu_si512(b + p * panel_bytes + k * kPanel * 4)
                                       : _mm512_setzero_si512());
      end_stores();
      add<kBothRows, kBothPanels>(rows, kPairs * 4, panels, panels + kPairs * kPanel);
    }

    template <bool kBothRows, bool kBothPanels, class Call>
    void run(const Call& call) const {
      constexpr int kPanels = kBothPanels ? 2 : 1;
      const Unit* a = call.a;
      const std::byte* b = call.b;
      const std::byte* ahead = call.ahead;
      const auto* before = call.from.data == nullptr ? nullptr : &call.from;
      Int left = call.units;
      do {
        Int of_sum = smaller(left, call.sum_units);
        left -= of_sum;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        // Rows of the next tile's sums, shared out among the steps.
        const bool fetches = call.next.data != nullptr && left == 0;
        const Int next_rows = fetches ? ceil_div(rows_ * kPairs, larger(of_sum, kPairs)) : 0;
        Int next_row = 0;
        for (; of_sum >= kPairs; of_sum -= kPairs) {
          for (Int at = 0; at < kPairs * call.ahead_step; at += 64)
            for (Int p = 0; p < kPanels; ++p)
              __builtin_prefetch(ahead + at + p * call.panel_bytes, 0, 2);
          for (Int n = 0; n < next_rows && next_row < rows_; ++n, ++next_row)
            for (int p = 0; p < kPanels; ++p)
              __builtin_prefetch(call.next.vector(static_cast<int>(next_row), p), 1);
          add<kBothRows, kBothPanels>(a, kInPlaceRowBytes, b, b + call.panel_bytes);
          a += kPairs;
          b += kPairs * kPanel * 4;
          ahead += kPairs * call.ahead_step;
        }
        if (of_sum > 0) {
          add_rest<kBothRows, kBothPanels>(a, b, call.panel_bytes, of_sum);
          a += of_sum;
          b += of_sum * kPanel * 4;
        }
        if (before == nullptr) {
          store<kBothRows, kBothPanels>(call.to.data, call.to.stride, call.to.panel_stride);
        } else {
          alignas(64) float sums[kRows * kVectors * kPanel];
          store<kBothRows, kBothPanels>(sums, kVectors * kPanel, kPanel);
          for (int r = 0; r < rows_; ++r)
            for (int p = 0; p < kPanels; ++p)
              _mm512_storeu_ps(call.to.vector(r, p),
                               _mm512_loadu_ps(before->vector(r, p)) +
                                   _mm512_load_ps(sums + (r * kVectors + p) * kPanel));
        }
        before = &call.to;
      } while (left > 0);
    }

    int rows_ = 0;  // that the registers are configured for; 0: for nothing
  };
};

constexpr GemmEngine kEngine{
    .isa = "amx_bf16",
    .accepts = [](DType a, DType b) { return a == DType::kBFloat16 && b == DType::kBFloat16; },
    .blocking = &GemmBlock<AmxBf16>::blocking,
    .sum_terms = &GemmBlock<AmxBf16>::sum_terms,
    .workspace_bytes = &GemmBlock<AmxBf16>::workspace_bytes,
    .compute = &GemmBlock<AmxBf16>::compute,
    .drop = &avx512::drop_columns};

}  // namespace

const GemmEngine* gemm_amx_bf16() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_amx_bf16() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
