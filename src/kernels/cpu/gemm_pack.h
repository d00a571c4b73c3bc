// SPDX-License-Identifier: Apache-2.0
// Packs operands of the GEMM engines into the order in which their tiles read them. Compiled once
// for each instruction set, so everything has internal linkage and calls no inline function of the
// standard library: the linker must never pick an AVX-512 copy for the whole program.
//
// A becomes `units` of the engine (one f32, or a pair of bf16 along the depth): row by row,
// [row][kRowStride], when it is contiguous along the depth, else interleaved, [tile][unit][kRows].
// B becomes panels of 16 columns, [panel][unit][16], where a unit is an f32 or a pair of bf16.
// Engines whose unit is an f32 turn f16 into that: elements of A and B while they are packed, those
// of a B that came packed in registers.
#pragma once
#include "base/rounding.h"
#include "kernels/cpu/gemm_convert.h"
#include "kernels/cpu/gemm_prologue.h"
#include "spec/dropout.h"
#include "tensor/float4.h"

namespace anabatic::kernels::cpu {
namespace {

inline std::uint32_t pair(std::uint16_t first, std::uint16_t second) {
  return std::uint32_t{first} | std::uint32_t{second} << 16;
}

// Sixteen pairs of two rows' elements. No templates: g++ 12 converts no dependent vectors.
using Halves16 = std::uint16_t __attribute__((vector_size(32)));
using Words16 = std::uint32_t __attribute__((vector_size(64)));
inline void pairs16(std::uint32_t* to, const std::uint16_t* first, const std::uint16_t* second) {
  Halves16 a, b;
  __builtin_memcpy(&a, first, sizeof a);
  __builtin_memcpy(&b, second, sizeof b);
  const Words16 low = __builtin_convertvector(a, Words16);
  const Words16 high = __builtin_convertvector(b, Words16);
  const Words16 words = low | high << 16;
  __builtin_memcpy(to, &words, sizeof words);
}
// Four times eight pairs, each `stride` after the last.
using Halves32 = std::uint16_t __attribute__((vector_size(64)));
inline void pairs8_by_4(std::uint32_t* to, std::int64_t stride, const std::uint16_t* first,
                        const std::uint16_t* second) {
  Halves32 a, b;
  __builtin_memcpy(&a, first, sizeof a);
  __builtin_memcpy(&b, second, sizeof b);
  const Halves32 low =
      __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40,
                              9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
  const Halves32 high =
      __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                              24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  Halves16 quarters[4];
  __builtin_memcpy(quarters, &low, sizeof low);
  __builtin_memcpy(quarters + 2, &high, sizeof high);
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) __builtin_memcpy(to + q * stride, &quarters[q], sizeof quarters[q]);
}

// Elements of T as units of A: one f32 each, or two bf16.
template <class T>
inline void copy_row(float* __restrict to, const T* __restrict from, Int depth) {
  if constexpr (__is_same(T, Float16))
    convert_halves(to, from, depth);
  else
    for (Int k = 0; k < depth; ++k) to[k] = as_float(from[k]);
  to[depth] = 0;  // for the padding of an odd pair of B
}
inline void copy_row(std::uint32_t* to, const std::uint16_t* from, Int depth) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(depth / 2) * 4);
  if (depth % 2 != 0) to[depth / 2] = from[depth - 1];
}
// `count` elements of a row (and of the next one, null when there is none) to units; the rest of
// kRows is zero. kWide >= kRows elements may be read and units written.
template <Int kRows, Int kWide, class T>
inline void interleave(float* __restrict to, const T* __restrict from, const T*, Int count) {
  if (count >= kWide) {
    if constexpr (__is_same(T, Float16))
      convert_halves(to, from, kWide);
    else
      for (Int r = 0; r < kWide; ++r) to[r] = as_float(from[r]);
  } else {
    for (Int r = 0; r < kRows; ++r) to[r] = r < count ? as_float(from[r]) : 0.0f;
  }
}
template <Int kRows, Int kWide>
inline void interleave(std::uint32_t* to, const std::uint16_t* from, const std::uint16_t* next,
                       Int count) {
  if (count >= kWide && next != nullptr) {
    for (Int r = 0; r < kWide; ++r) to[r] = pair(from[r], next[r]);
  } else {
    for (Int r = 0; r < kRows; ++r)
      to[r] = r < count ? pair(from[r], next != nullptr ? next[r] : std::uint16_t{0}) : 0u;
  }
}

// Prefetches a row: rows are far apart, so the hardware does not prefetch them.
inline constexpr Int kRowsAhead = 16;
inline void prefetch_row(const void* row, Int bytes) {
  for (Int at = 0; at < bytes; at += 64)
    __builtin_prefetch(static_cast<const std::byte*>(row) + at);
}

// Norms and dropout are of f32 and bf16.
template <class T>
inline constexpr bool kMayHavePrologue = !__is_same(T, Float16);

// Parts of kLines successive lines, at most kColumns wide, with their norm and dropout. They take
// the place of what the operand holds.
template <class T, Int kLines, Int kColumns>
class PrologueLines {
 public:
  explicit PrologueLines(const Matrix& x) : x_(x) {}

  bool is_asked_for() const { return kMayHavePrologue<T> && has_prologue(x_); }

  float first_statistic(Int i) const {
    return x_.norm.statistics[x_.index.line(i) * x_.norm.num_statistics];
  }

  // Columns [column, column + width) of the lines from `first` of the operand on lie at `row`, and
  // the last of several at `next`, where it is there. Both become what the product reads.
  void take(Int first, Int column, Int width, const T*& row, const T*& next) {
    if constexpr (kMayHavePrologue<T>) {
      if (next != nullptr && next != row) {
        put_prologue(lines_[kLines - 1], next, x_, x_.index.line(first + 1), column, width);
        next = lines_[kLines - 1];
      } else if (next != nullptr) {
        next = lines_[0];
      }
      put_prologue(lines_[0], row, x_, x_.index.line(first), column, width);
      row = lines_[0];
    }
  }

 private:
  const Matrix& x_;
  // What lies beyond the columns is read, and never used.
  alignas(64) T lines_[kMayHavePrologue<T> ? kLines : 1][kMayHavePrologue<T> ? kColumns + 32 : 1];
};

// Unit: of the engine. kRows: of its tile.
template <class Unit, Int kRows>
struct PackA {
  static constexpr Int kUnitDepth = sizeof(Unit) == 4 && !__is_same(Unit, float) ? 2 : 1;
  static constexpr Int kMaxUnits = 512;
  // Rows start in different sets of the cache.
  static constexpr Int kRowStride = kInPlaceRowBytes / static_cast<Int>(sizeof(Unit));
  static_assert(kRowStride > kMaxUnits);
  // Six rows are moved as eight: the next unit overwrites the last two.
  static constexpr Int kWide = kRows == 6 ? 8 : kRows;

  // An even number: a pair of B reads two units of one f32 each, the second one zero at the end.
  static constexpr Int units_of(Int depth) { return round_up(ceil_div(depth, kUnitDepth), 2); }
  static constexpr Int tile_stride(Int units) { return units * kRows + 16; }

  // rows x depth at (i0, k0), contiguous along the depth, as [row][kRowStride].
  template <class T>
  static void by_rows(Unit* to, const Matrix& a, Int i0, Int rows, Int k0, Int depth) {
    constexpr Int kAhead = 4;
    const T* from = reinterpret_cast<const T*>(a.data) + k0;
    for (Int i = 0; i < rows; ++i) {
      if (i + kAhead < rows)
        prefetch_row(from + a.index.line(i0 + i + kAhead) * a.row_stride,
                     depth * static_cast<Int>(sizeof(T)));
      const Int line = a.index.line(i0 + i);
      if constexpr (kMayHavePrologue<T>)
        if (has_prologue(a)) {
          copy_prologue(to + i * kRowStride, from + line * a.row_stride, a, line, k0, depth);
          continue;
        }
      copy_row(to + i * kRowStride, from + line * a.row_stride, depth);
    }
  }

  // copy_row of columns [column, column + depth) of a line, with its norm and dropout.
  template <class T>
  static void copy_prologue(Unit* to, const T* from, const Matrix& a, Int line, Int column,
                            Int depth) {
    if constexpr (sizeof(T) * kUnitDepth == sizeof(Unit)) {
      if (depth % kUnitDepth != 0) to[depth / kUnitDepth] = Unit{};
      put_prologue(reinterpret_cast<T*>(to), from, a, line, column, depth);
      if constexpr (kUnitDepth == 1) to[depth] = 0;  // as copy_row
    } else if (a.dropout.draws == nullptr) {
      normalise_line(to, from, a.norm, line, column, depth);
      to[depth] = 0;
    } else {
      alignas(64) T elements[kMaxUnits];
      elements[0] = T{};  // g++ 12 does not see that all that is read is written
      put_prologue(elements, from, a, line, column, depth);
      copy_row(to, elements, depth);
    }
  }

  // rows x depth at (i0, k0), contiguous along the rows, as tiles [unit][kRows], tile_stride apart.
  // Some tiles at a time: whole cache lines are read, and the writes are not too many streams.
  template <class T>
  static void interleaved(Unit* to, const Matrix& a, Int i0, Int rows, Int k0, Int depth) {
    constexpr Int kStrip = 24;
    // Dropout draws bits of so many columns at once.
    constexpr Int kDrawn =
        spec::kDropoutColumns % kRows == 0 && spec::kDropoutColumns / kRows <= kStrip
            ? spec::kDropoutColumns / kRows
            : kStrip;
    const T* from = reinterpret_cast<const T*>(a.data) + i0;
    const auto line = [&](Int k) { return from + a.index.line(k0 + k) * a.column_stride; };
    const Int units = units_of(depth), tiles = ceil_div(rows, kRows);
    PrologueLines<T, kUnitDepth, kStrip * kRows> prologue(a);
    const bool drops = a.dropout.draws != nullptr;
    for (Int t0 = 0, strip = 0; t0 < tiles; t0 += strip) {
      strip = drops ? kDrawn - (i0 / kRows + t0) % kDrawn : kStrip;
      for (Int u = 0; u < units; ++u) {
        const Int left = depth - u * kUnitDepth;
        const Int width = smaller(strip * kRows, rows - t0 * kRows);
        if (left > kRowsAhead + kUnitDepth)
          for (Int k = 0; k < kUnitDepth; ++k)
            prefetch_row(line(u * kUnitDepth + kRowsAhead + k) + t0 * kRows,
                         width * static_cast<Int>(sizeof(T)));
        // From here on columns count from the strip's first.
        const T* row = (left > 0 ? line(u * kUnitDepth) : from) + t0 * kRows;
        const T* next = left >= kUnitDepth ? line((u + 1) * kUnitDepth - 1) + t0 * kRows : nullptr;
        Int t = t0, base = t0;  // base: the tile at which row and next begin
        const Int whole = next != nullptr ? smaller(rows / kRows, t0 + strip) : 0;
        if constexpr (kHasNormPairs && kUnitDepth == 2 && kRows == 8)
          if (a.norm.statistics != nullptr && a.norm.bias == nullptr && !drops)
            for (; t + 4 <= whole; t += 4)
              norm_pairs8_by_4(to + t * tile_stride(units) + u * kRows, tile_stride(units),
                               row + (t - t0) * kRows, next + (t - t0) * kRows,
                               prologue.first_statistic(k0 + u * kUnitDepth),
                               prologue.first_statistic(k0 + u * kUnitDepth + 1),
                               a.norm.weight + i0 + t * kRows);
        if (prologue.is_asked_for() && left > 0 && t < smaller(tiles, t0 + strip)) {
          const Int done = (t - t0) * kRows;
          row += done;
          if (next != nullptr) next += done;
          prologue.take(k0 + u * kUnitDepth, i0 + t * kRows, width - done, row, next);
          base = t;
        }
        if constexpr (kUnitDepth == 2 && kRows == 8)
          for (; t + 4 <= whole; t += 4)
            pairs8_by_4(to + t * tile_stride(units) + u * kRows, tile_stride(units),
                        row + (t - base) * kRows, next + (t - base) * kRows);
        for (; t < smaller(tiles, t0 + strip); ++t)
          interleave<kRows, kWide>(to + t * tile_stride(units) + u * kRows,
                                   row + (t - base) * kRows,
                                   next != nullptr ? next + (t - base) * kRows : nullptr,
                                   left > 0 ? rows - t * kRows : 0);
      }
    }
  }
};

// Elements in int8 times their scale, to bf16, half to even: a NaN has no lower bits here. A loop,
// and not unrolled, for g++ 12 converts vectors of bytes, or single ones, one by one.
template <Int kCount>
inline void dequantize_elements(std::uint16_t* __restrict to, const std::int8_t* __restrict from,
                                float scale) {
#pragma GCC unroll 1
  for (Int n = 0; n < kCount; ++n) {
    const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(from[n]) * scale);
    to[n] = static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
}

// Lines of a quantised B: columns where it is contiguous along the depth, else rows of the depth.
class QuantizedLines {
 public:
  explicit QuantizedLines(const Matrix& b)
      : b_(b), stride_(b.column_stride == 1 ? b.row_stride : b.column_stride) {}

 protected:
  template <class T>
  const T* bytes(Int i, Int at) const {
    static_assert(sizeof(T) == 1);
    return reinterpret_cast<const T*>(b_.data) + (i * stride_ + at);
  }
  template <class T>
  T scale(Int i, Int block) const {
    T result;
    __builtin_memcpy(&result, b_.scales + (i * b_.scale_stride + block) * Int{sizeof(T)},
                     sizeof(T));
    return result;
  }

  const Matrix& b_;
  const Int stride_;
};

// Elements in int8, with scales in bf16.
template <class Isa>
struct LinesInInt8 : QuantizedLines {
  using QuantizedLines::QuantizedLines;

  const void* place(Int i, Int at) const { return this->template bytes<std::int8_t>(i, at); }
  // What `dequantize` takes for kCount elements from `at` on, which share a scale; -1 where they do
  // not, or fewer are there.
  template <Int kCount>
  Int block_of(Int at, Int count) const {
    const Int block = at / b_.scale_columns;
    return count >= kCount && at + kCount <= (block + 1) * b_.scale_columns ? block : -1;
  }
  template <Int kCount>
  void dequantize(std::uint16_t* to, Int i, Int at, Int block) const {
    const std::int8_t* from = this->template bytes<std::int8_t>(i, at);
    const float factor = widen(this->template scale<std::uint16_t>(i, block));
    if constexpr (kCount == 2 * Isa::kSquare && requires { Isa::dequantize(to, from, factor); })
      Isa::dequantize(to, from, factor);
    else
      dequantize_elements<kCount>(to, from, factor);
  }
};

// Elements of MXFP4. Sixteen from a multiple of 16 on share a scale.
template <class Isa>
struct LinesInFloat4 : QuantizedLines {
  using QuantizedLines::QuantizedLines;

  static constexpr Int kBlock = 32, kSixteen = 16;

  const void* place(Int i, Int at) const { return pairs(i, at); }
  template <Int kCount>
  Int block_of(Int at, Int count) const {
    return count >= kCount && at % smaller(kCount, kSixteen) == 0 ? at / kBlock : -1;
  }
  template <Int kCount>
  void dequantize(std::uint16_t* to, Int i, Int at, Int block) const {
    const std::uint8_t* from = pairs(i, at);
    if constexpr (kCount == 1) {
      *to = narrow(float4_value(from[0] >> (at % 2 * 4) & 15u, power(i, block)));
    } else if constexpr (kCount == 2 * kSixteen) {
      const E8M0Powers low = powers_of_e8m0(power(i, block)),
                       high = powers_of_e8m0(power(i, (at + kSixteen) / kBlock));
      if constexpr (requires { Isa::dequantize_float4(to, from, low, high); }) {
        Isa::dequantize_float4(to, from, low, high);
      } else {
        look_up<kSixteen>(to, from, low);
        look_up<kSixteen>(to + kSixteen, from + kSixteen / 2, high);
      }
    } else {
      look_up<kCount>(to, from, powers_of_e8m0(power(i, block)));
    }
  }

 private:
  std::uint8_t power(Int i, Int block) const {
    return this->template scale<std::uint8_t>(i, block);
  }
  const std::uint8_t* pairs(Int i, Int at) const {
    return reinterpret_cast<const std::uint8_t*>(b_.data) + (i * stride_ + at) / 2;
  }
  // The values of all elements in bf16, which has them without rounding.
  template <Int kCount>
  static void look_up(std::uint16_t* __restrict to, const std::uint8_t* __restrict from,
                      E8M0Powers scale) {
    std::uint16_t values[16];
    for (Int n = 0; n < 16; ++n)
      values[n] = static_cast<std::uint16_t>(
          __builtin_bit_cast(std::uint32_t, kFloat4Doubled[n] * scale.first * scale.second) >> 16);
    for (Int n = 0; n < kCount / 2; ++n) {
      to[2 * n] = values[from[n] & 15u];
      to[2 * n + 1] = values[from[n] >> 4];
    }
  }
};

// Isa::transpose: sixteen rows of Isa::kSquare words each, of any stride, to [word][16].
template <class Isa>
struct PackB {
  // Columns [j0, j0 + columns) and [k0, k0 + depth) of B as panels of `units` units each.
  static void run(std::byte* panels, const Matrix& b, Int j0, Int columns, Int k0, Int depth) {
    if (b.scale_columns > 0 && b.map == ElementMap::kFloat4)
      Dequantized<LinesInFloat4<Isa>>(b).run(reinterpret_cast<std::uint32_t*>(panels), j0, columns,
                                             k0, depth);
    else if (b.scale_columns > 0)
      Dequantized<LinesInInt8<Isa>>(b).run(reinterpret_cast<std::uint32_t*>(panels), j0, columns,
                                           k0, depth);
    else if (b.dtype == DType::kFloat32)
      run_typed(reinterpret_cast<float*>(panels), reinterpret_cast<const float*>(b.data), b, j0,
                columns, k0, depth);
    else if (b.dtype == DType::kFloat16)
      run_typed(reinterpret_cast<float*>(panels), reinterpret_cast<const Float16*>(b.data), b, j0,
                columns, k0, depth);
    else
      run_typed(reinterpret_cast<std::uint32_t*>(panels),
                reinterpret_cast<const std::uint16_t*>(b.data), b, j0, columns, k0, depth);
  }

 private:
  // Panels of a quantised matrix.
  template <class Lines>
  class Dequantized {
   public:
    explicit Dequantized(const Matrix& b) : lines_(b), is_by_rows_(b.column_stride == 1) {}

    void run(std::uint32_t* panels, Int j0, Int columns, Int k0, Int depth) const {
      const Int units = ceil_div(depth, Int{2});
      if (is_by_rows_) {
        for (Int j = 0; j < columns; j += kStrip)
          rows(panels + j * units, j0 + j, smaller(kStrip, columns - j), k0, depth, units);
        return;
      }
      for (Int j = 0; j < columns; j += kPanel)
        transposed(panels + j * units, j0 + j, smaller(kPanel, columns - j), k0, depth);
    }

   private:
    static constexpr Int kSquare = Isa::kSquare * 2;  // elements of a line
    static constexpr Int kStrip = 4 * kPanel, kSquares = kStrip / kSquare;

    // kSquare elements of line i from `at` on, of which `count` are there. The others are zero.
    void square(std::uint16_t* to, Int i, Int at, Int count, Int block) const {
      if (block >= 0) return lines_.template dequantize<kSquare>(to, i, at, block);
      constexpr Int kPart = smaller(kSquare, kPanel);
      for (Int n = 0; n < kSquare; n += kPart) {
        if (const Int part = lines_.template block_of<kPart>(at + n, count - n); part >= 0) {
          lines_.template dequantize<kPart>(to + n, i, at + n, part);
          continue;
        }
        for (Int p = n; p < n + kPart; ++p) {
          to[p] = 0;
          if (p < count)
            lines_.template dequantize<1>(to + p, i, at + p,
                                          lines_.template block_of<1>(at + p, 1));
        }
      }
    }

    // Lines are the columns.
    void transposed(std::uint32_t* panel, Int j, Int width, Int k0, Int depth) const {
      constexpr Int kAhead = 512;  // elements of a line
      alignas(64) std::uint16_t lines[kPanel * kSquare] = {};
      alignas(64) std::uint32_t turned[kPanel * Isa::kSquare];
      for (Int k = 0; k < depth; k += kSquare) {
        const Int at = k0 + k, count = smaller(kSquare, depth - k),
                  block = lines_.template block_of<kSquare>(at, count);
        for (Int n = 0; n < width; ++n) {
          if (block >= 0) __builtin_prefetch(lines_.place(j + n, at + kAhead));
          square(lines + n * kSquare, j + n, at, count, block);
        }
        std::uint32_t* to = panel + k / 2 * kPanel;
        Isa::transpose(count == kSquare ? to : turned, reinterpret_cast<const std::byte*>(lines),
                       kSquare * Int{sizeof(std::uint16_t)});
        if (count < kSquare)
          __builtin_memcpy(to, turned,
                           static_cast<std::size_t>(ceil_div(count, Int{2}) * kPanel) * 4);
      }
    }

    // Lines are the depth. Some are dequantised before they are read again, for loads of parts of a
    // vector wait until it has left the processor.
    void rows(std::uint32_t* panels, Int j, Int columns, Int k0, Int depth, Int units) const {
      constexpr Int kLines = 32;
      alignas(64) std::uint16_t lines[kLines][kStrip] = {};
      Int blocks[kSquares];
      for (Int s = 0; s < kSquares; ++s)
        blocks[s] = lines_.template block_of<kSquare>(j + s * kSquare, columns - s * kSquare);
      for (Int k = 0; k < depth; k += kLines) {
        const Int count = smaller(kLines, depth - k);
        for (Int r = 0; r < count; ++r) {
          const Int i = k0 + k + r;
          if (k + r + kRowsAhead < depth) __builtin_prefetch(lines_.place(i + kRowsAhead, j));
          for (Int s = 0; s < kSquares && s * kSquare < columns; ++s)
            square(lines[r] + s * kSquare, i, j + s * kSquare, columns - s * kSquare, blocks[s]);
        }
        if (count % 2 != 0) __builtin_memset(lines[count], 0, sizeof lines[count]);
        for (Int n = 0; n < columns; n += kPanel)
          for (Int r = 0; r < count; r += 2)
            pairs16(panels + n * units + (k + r) / 2 * kPanel, lines[r] + n, lines[r + 1] + n);
      }
    }

    const Lines lines_;
    const bool is_by_rows_;
  };

  template <class Unit, class T>
  static void run_typed(Unit* panels, const T* data, const Matrix& b, Int j0, Int columns, Int k0,
                        Int depth) {
    const Int units = ceil_div(depth, kElements<Unit>);
    constexpr Int kStrip = 4 * kPanel, kDrawn = spec::kDropoutColumns;
    if (b.column_stride == 1) {
      const bool drops = b.dropout.draws != nullptr;
      for (Int j = 0, strip = 0; j < columns; j += strip) {
        strip = smaller(drops ? kDrawn - (j0 + j) % kDrawn : kStrip, columns - j);
        rows(panels + j * units, data, b, j0 + j, strip, k0, depth, units);
      }
      return;
    }
    const T* source = data + k0 * b.row_stride + j0 * b.column_stride;
    for (Int j = 0; j < columns; j += kPanel)
      transposed(panels + j * units, source + j * b.column_stride, b.column_stride,
                 smaller(kPanel, columns - j), depth);
  }

  // Elements of the depth in a unit.
  template <class Unit>
  static constexpr Int kElements = __is_same(Unit, float) ? 1 : 2;

  // A unit at element `from`, whose next element of the depth is `next`; `left` of the depth.
  static float unit(const float* from, const float*, Int) { return *from; }
  static float unit(const Float16* from, const Float16*, Int) { return as_float(*from); }
  static std::uint32_t unit(const std::uint16_t* from, const std::uint16_t* next, Int left) {
    return pair(*from, left > 1 ? *next : std::uint16_t{0});
  }

  // The units of a panel's row.
  static void whole(float* to, const float* from, const float*) {
    __builtin_memcpy(to, from, kPanel * sizeof(float));
  }
  static void whole(float* to, const Float16* from, const Float16*) {
    convert_halves(to, from, kPanel);
  }
  static void whole(std::uint32_t* to, const std::uint16_t* from, const std::uint16_t* next) {
    static_assert(kPanel == 16);
    pairs16(to, from, next);
  }

  // The columns are contiguous: few panels at a time, at most kDropoutColumns, so that whole cache
  // lines are read and the writes stay a few sequential streams.
  template <class Unit, class T>
  static void rows(Unit* __restrict panels, const T* __restrict data, const Matrix& b, Int j0,
                   Int columns, Int k0, Int depth, Int units) {
    constexpr Int kUnitDepth = kElements<Unit>;
    const auto line = [&](Int k) { return data + b.index.line(k0 + k) * b.row_stride + j0; };
    PrologueLines<T, kUnitDepth, spec::kDropoutColumns> prologue(b);
    for (Int u = 0; u < units; ++u) {
      const Int left = depth - u * kUnitDepth;
      const T* source = line(u * kUnitDepth);
      const T* next = left >= kUnitDepth ? line((u + 1) * kUnitDepth - 1) : source;
      Unit* row = panels + u * kPanel;
      if (left > kRowsAhead + kUnitDepth)
        for (Int k = 0; k < kUnitDepth; ++k)
          prefetch_row(line(u * kUnitDepth + kRowsAhead + k),
                       columns * static_cast<Int>(sizeof(T)));
      if (prologue.is_asked_for()) prologue.take(k0 + u * kUnitDepth, j0, columns, source, next);
      Int j = 0;
      if (left >= kUnitDepth)
        for (; j + kPanel <= columns; j += kPanel) whole(row + j * units, source + j, next + j);
      for (; j < columns; j += kPanel)
        for (Int lane = 0; lane < kPanel; ++lane)
          row[j * units + lane] =
              j + lane < columns ? unit(source + j + lane, next + j + lane, left) : Unit{};
    }
  }

  // The depth is contiguous: squares of words are transposed in registers.
  template <class Unit, class T>
  static void transposed(Unit* panel, const T* source, Int stride, Int width, Int depth) {
    constexpr Int kUnitDepth = kElements<Unit>, kSquare = Isa::kSquare * kUnitDepth;
    Int k = 0;
    if (width == kPanel)
      for (; k + kSquare <= depth; k += kSquare) {
        if constexpr (__is_same(T, Float16)) {
          alignas(64) float lines[kPanel * kSquare];
          for (Int j = 0; j < kPanel; ++j)
            convert_halves(lines + j * kSquare, source + j * stride + k, kSquare);
          Isa::transpose(panel + k * kPanel, reinterpret_cast<const std::byte*>(lines),
                         kSquare * Int{sizeof(float)});
        } else {
          Isa::transpose(panel + k / kUnitDepth * kPanel,
                         reinterpret_cast<const std::byte*>(source + k),
                         stride * static_cast<Int>(sizeof(T)));
        }
      }
    for (; k < depth; k += kUnitDepth) {
      Unit* row = panel + k / kUnitDepth * kPanel;
      for (Int j = 0; j < kPanel; ++j)
        row[j] = j < width ? unit(source + j * stride + k, source + j * stride + k + 1, depth - k)
                           : Unit{};
    }
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu
