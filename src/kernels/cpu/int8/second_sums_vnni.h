// SPDX-License-Identifier: Apache-2.0
// Makes sums of second values (second_sums.h) with VPDPBUSD. Compiled for AVX-512 alone: see
// gemm_pack.h for what that forbids.
#pragma once
#include "kernels/cpu/int8/block.h"

namespace anabatic::kernels::cpu {
namespace {

// Vnni: dot, as avx512_vnni.cpp has it.
template <class Vnni>
class Int8SecondVnni {
 public:
  // The rows of A that fall back, of `rows` rows from the tile's first on.
  static void find_rows(const Int8Tile& tile, Int rows, Int8SecondRows& found) {
    if (tile.a_second == nullptr) return;
    const Int num_blocks = ceil_div(tile.units, kBlockUnits);
    for (std::uint64_t& rows_of_block : found.of_block) rows_of_block = 0;
    unsigned any = 0;
    for (Int r = 0; r < rows; ++r) {
      const Int line = tile.a_lane + r, lane = tile.a_panel == 0 ? 0 : line % kInt8Panel;
      const std::uint16_t* flags =
          tile.a_falls_back +
          (tile.a_panel == 0 ? r * tile.a_flag_row : line / kInt8Panel * tile.a_flag_panel);
      unsigned of_row = 0;
      for (Int k = 0; k < num_blocks; ++k) of_row |= flags[k];
      of_row = of_row >> lane & 1u;
      any |= of_row;
      if (of_row == 0) continue;
      for (Int k = 0; k < num_blocks; ++k)
        found.of_block[k] |= std::uint64_t{flags[k] >> lane & 1u} << r;
    }
    found.any = any != 0;
  }

  // Of `rows` rows from the tile's first on, by `panels` panels. Sums go to `space`, and what tells
  // of them to `blocks`. False where nothing falls back.
  static bool sum(const Int8Tile& first, const Int8SecondRows& found, Int rows, Int panels,
                  float* space, Int8SecondBlock* blocks) {
    const Int num_blocks = ceil_div(first.units, kBlockUnits);
    if (first.a_second != nullptr) {
      if (!found.any) return false;
      for (Int k = 0; k < num_blocks; ++k) {
        blocks[k].rows = found.of_block[k];
        for (std::uint16_t& columns : blocks[k].columns) columns = 0xFFFF;
        if (blocks[k].rows != 0) space = sum_rows(first, k, panels, space, blocks[k]);
      }
      return true;
    }
    bool any = false;
    for (Int k = 0; k < num_blocks; ++k) {
      Int count = 0;
      for (Int v = 0; v < kInt8Panels; ++v) {
        const unsigned columns = v < panels ? first.b_falls_back[v * first.b_flag_panel + k] : 0u;
        blocks[k].columns[v] = static_cast<std::uint16_t>(columns);
        count += __builtin_popcount(columns);
      }
      blocks[k].rows = 0;
      if (k + 1 < num_blocks) prefetch_second(first, k + 1, panels);
      if (count == 0) continue;
      any = true;
      blocks[k].rows = ~std::uint64_t{0} >> (64 - rows);
      // Panels of A that the rows lie in.
      const Int lane = first.a_lane, left = ceil_div(lane + rows, kInt8Panel),
                quads = ceil_div(count, Int{4});
      if (first.a_panel != 0 && count <= kInt8Panel &&
          quads * left * 64 <= round_up(rows, kInt8Rows) * kInt8Columns)
        space = sum_columns(first, k, lane, left, quads, space, blocks[k]);
      else
        space = sum_rows(first, k, panels, space, blocks[k]);
    }
    return any;
  }

 private:
  static constexpr Int kUnitBytes = kInt8Panel * kInt8Unit;

  // B's second values of a block. A column of them is a word of every line of the cache.
  static inline __attribute__((always_inline)) void prefetch_second(const Int8Tile& tile, Int k,
                                                                    Int panels) {
    for (Int v = 0; v < panels; ++v) {
      if (tile.b_falls_back[v * tile.b_flag_panel + k] == 0) continue;
      const std::int8_t* b = tile.b_second + v * tile.b_panel + k * kInt8Block * kInt8Panel;
      for (Int u = 0; u < units_of_block(tile.units, k); ++u)
        __builtin_prefetch(b + u * kUnitBytes);
    }
  }

  // Where the values of row r begin that are multiplied by B's or B's second ones.
  static const std::int8_t* row_at(const Int8Tile& tile, Int r) {
    const std::int8_t* a = tile.a_second != nullptr ? tile.a_second : tile.a;
    if (tile.a_panel == 0) return a + r * tile.a_row;
    const Int line = tile.a_lane + r;
    return a + line / kInt8Panel * tile.a_panel + (line % kInt8Panel - tile.a_lane) * kInt8Unit;
  }

  // Sums of the rows that take second values: those of A, or else of B.
  static float* sum_rows(const Int8Tile& tile, Int k, Int panels, float* space,
                         Int8SecondBlock& block) {
    block.sums = space;
    block.num_quads = 0;
    const bool of_a = tile.a_second != nullptr;
    const std::int8_t* rows[kInt8SecondRows];
    Int count = 0;
    for (std::uint64_t bits = block.rows; bits != 0; bits &= bits - 1)
      rows[count++] = row_at(tile, __builtin_ctzll(bits)) + k * kBlockUnits * tile.a_unit;
    const RowSums sums{
        .units = units_of_block(tile.units, k),
        .a_unit = tile.a_unit,
        .a_is_unsigned = tile.a_is_unsigned,
        .b = (of_a ? tile.b : tile.b_second) + k * kInt8Block * kInt8Panel,
        .b_panel = tile.b_panel,
        .compensation = (of_a ? tile.compensation : tile.second_compensation) + k * kInt8Panel,
        .compensation_panel = tile.compensation_panel};
    // As few parts as there can be, of about equal numbers of rows.
    for (Int parts = ceil_div(count, kMostRows), at = 0; parts > 0; --parts) {
      const Int part = ceil_div(count - at, parts);
      row_function(part, panels)(sums, rows + at, space);
      at += part;
      space += part * kInt8Columns;
    }
    return space;
  }

  struct RowSums {
    Int units, a_unit;
    bool a_is_unsigned;
    const std::int8_t* b;
    Int b_panel;
    const std::int32_t* compensation;
    Int compensation_panel;
  };
  using RowFunction = void (*)(const RowSums&, const std::int8_t* const*, float*);

  static constexpr Int kMostRows = 8;
  static RowFunction row_function(Int rows, Int panels) {
    static constexpr RowFunction kFunctions[kMostRows][3] = {
        {&add_rows<1, 1>, &add_rows<1, 2>, &add_rows<1, 3>},
        {&add_rows<2, 1>, &add_rows<2, 2>, &add_rows<2, 3>},
        {&add_rows<3, 1>, &add_rows<3, 2>, &add_rows<3, 3>},
        {&add_rows<4, 1>, &add_rows<4, 2>, &add_rows<4, 3>},
        {&add_rows<5, 1>, &add_rows<5, 2>, &add_rows<5, 3>},
        {&add_rows<6, 1>, &add_rows<6, 2>, &add_rows<6, 3>},
        {&add_rows<7, 1>, &add_rows<7, 2>, &add_rows<7, 3>},
        {&add_rows<8, 1>, &add_rows<8, 2>, &add_rows<8, 3>}};
    return kFunctions[rows - 1][panels - 1];
  }

  // Few sums would wait for each other, so each is that of several parts.
  static constexpr int parts_of(int sums) { return sums < 4 ? 4 : sums < 8 ? 2 : 1; }

  template <int R, int V>
  static __attribute__((noinline)) void add_rows(const RowSums& in, const std::int8_t* const* rows,
                                                 float* to) {
    constexpr int kParts = parts_of(R * V);
    const __m512i sign = _mm512_set1_epi32(in.a_is_unsigned ? 0 : static_cast<int>(0x80808080u));
    const __m512i compensates = _mm512_set1_epi32(in.a_is_unsigned ? 0 : -1);
    __m512i sums[kParts][R][V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      const __m512i value = _mm512_and_si512(
          compensates, _mm512_load_si512(in.compensation + v * in.compensation_panel));
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part)
          sums[part][i][v] = part == 0 ? value : _mm512_setzero_si512();
    }
    const std::int8_t* b = in.b;
    Int at = 0;
    const auto add_unit = [&](int part) __attribute__((always_inline)) {
      __m512i right[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) right[v] = _mm512_load_si512(b + v * in.b_panel);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        std::int32_t word;
        __builtin_memcpy(&word, rows[i] + at, sizeof word);
        const __m512i codes = _mm512_xor_si512(_mm512_set1_epi32(word), sign);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) sums[part][i][v] = Vnni::dot(sums[part][i][v], codes, right[v]);
      }
      at += in.a_unit;
      b += kUnitBytes;
    };
    Int units = in.units;
    for (; units >= 4; units -= 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) add_unit(u % kParts);
    }
    for (; units > 0; --units) add_unit(0);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        __m512i sum = sums[0][i][v];
#pragma GCC unroll 4
        for (int part = 1; part < kParts; ++part) sum = _mm512_add_epi32(sum, sums[part][i][v]);
        _mm512_storeu_ps(to + i * kInt8Columns + v * kInt8Panel, _mm512_cvtepi32_ps(sum));
      }
  }

  // Sums of the columns that fall back. A's panels take the place of B's.
  static float* sum_columns(const Int8Tile& tile, Int k, Int lane, Int left, Int quads,
                            float* space, Int8SecondBlock& block) {
    block.num_quads = static_cast<std::int32_t>(quads);
    block.quad_stride = left * 64;
    block.sums = space;
    const std::int8_t* columns[kInt8Panel];
    std::int32_t compensation[kInt8Panel];
    std::int32_t count = 0;
    for (Int v = 0; v < kInt8Panels; ++v)
      for (unsigned bits = block.columns[v]; bits != 0; bits &= bits - 1) {
        const int n = __builtin_ctz(bits);
        block.places[v][n] = count;
        columns[count] =
            tile.b_second + v * tile.b_panel + k * kInt8Block * kInt8Panel + n * kInt8Unit;
        compensation[count++] =
            tile.second_compensation[v * tile.compensation_panel + k * kInt8Panel + n];
      }
    const Int panel_bytes = tile.a_panel, units = units_of_block(tile.units, k);
    const std::int8_t* a = tile.a - lane * kInt8Unit + k * kBlockUnits * tile.a_unit;
    for (Int at = 0, width = 0; at < count; at += width) {
      width = count - at <= kMostColumns ? count - at : 4;
      for (Int p = 0; p < left; p += 4)
        column_function(smaller(Int{4}, left - p), width)({.units = units,
                                                           .a = a + p * panel_bytes,
                                                           .a_panel = panel_bytes,
                                                           .quad_stride = left * 64},
                                                          columns + at, compensation + at,
                                                          space + at / 4 * left * 64 + p * 64);
    }
    return space + quads * left * 64;
  }

  struct ColumnSums {
    Int units;
    const std::int8_t* a;
    Int a_panel;
    Int quad_stride;
  };
  using ColumnFunction = void (*)(const ColumnSums&, const std::int8_t* const*, const std::int32_t*,
                                  float*);

  static constexpr Int kMostColumns = 6;
  static ColumnFunction column_function(Int panels, Int columns) {
    static constexpr ColumnFunction kFunctions[4][kMostColumns] = {
        {&add_columns<1, 1>, &add_columns<1, 2>, &add_columns<1, 3>, &add_columns<1, 4>,
         &add_columns<1, 5>, &add_columns<1, 6>},
        {&add_columns<2, 1>, &add_columns<2, 2>, &add_columns<2, 3>, &add_columns<2, 4>,
         &add_columns<2, 5>, &add_columns<2, 6>},
        {&add_columns<3, 1>, &add_columns<3, 2>, &add_columns<3, 3>, &add_columns<3, 4>,
         &add_columns<3, 5>, &add_columns<3, 6>},
        {&add_columns<4, 1>, &add_columns<4, 2>, &add_columns<4, 3>, &add_columns<4, 4>,
         &add_columns<4, 5>, &add_columns<4, 6>}};
    return kFunctions[panels - 1][columns - 1];
  }

  // P panels of A by C columns.
  template <int P, int C>
  static __attribute__((noinline)) void add_columns(const ColumnSums& in,
                                                    const std::int8_t* const* columns,
                                                    const std::int32_t* compensation, float* to) {
    constexpr int kParts = parts_of(P * C);
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80808080u));
    __m512i sums[kParts][P][C];
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part)
          sums[part][p][c] =
              part == 0 ? _mm512_set1_epi32(compensation[c]) : _mm512_setzero_si512();
    const std::int8_t* a = in.a;
    Int at = 0;
    const auto add_unit = [&](int part) __attribute__((always_inline)) {
      __m512i left[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        left[p] = _mm512_xor_si512(_mm512_load_si512(a + p * in.a_panel), sign);
#pragma GCC unroll 6
      for (int c = 0; c < C; ++c) {
        std::int32_t word;
        __builtin_memcpy(&word, columns[c] + at, sizeof word);
        const __m512i right = _mm512_set1_epi32(word);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sums[part][p][c] = Vnni::dot(sums[part][p][c], left[p], right);
      }
      a += kUnitBytes;
      at += kUnitBytes;
    };
    Int units = in.units;
    for (; units >= 4; units -= 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) add_unit(u % kParts);
    }
    for (; units > 0; --units) add_unit(0);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 2
      for (int c = 0; c < C; c += 4) {
        const auto column = [&](int n) __attribute__((always_inline)) {
          if (n >= C) return _mm512_setzero_si512();
          __m512i sum = sums[0][p][n < C ? n : 0];
#pragma GCC unroll 4
          for (int part = 1; part < kParts; ++part)
            sum = _mm512_add_epi32(sum, sums[part][p][n < C ? n : 0]);
          return sum;
        };
        put_columns(column(c), column(c + 1), column(c + 2), column(c + 3),
                    to + c / 4 * in.quad_stride + p * 64);
      }
  }

  // Sums of four columns, a row a lane, to [4][4][4] as second_sums.h has them.
  static inline __attribute__((always_inline)) void put_columns(__m512i a, __m512i b, __m512i c,
                                                                __m512i d, float* to) {
    const __m512i low0 = _mm512_unpacklo_epi32(a, b), low1 = _mm512_unpacklo_epi32(c, d),
                  high0 = _mm512_unpackhi_epi32(a, b), high1 = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_ps(to, _mm512_cvtepi32_ps(_mm512_unpacklo_epi64(low0, low1)));
    _mm512_storeu_ps(to + 16, _mm512_cvtepi32_ps(_mm512_unpackhi_epi64(low0, low1)));
    _mm512_storeu_ps(to + 32, _mm512_cvtepi32_ps(_mm512_unpacklo_epi64(high0, high1)));
    _mm512_storeu_ps(to + 48, _mm512_cvtepi32_ps(_mm512_unpackhi_epi64(high0, high1)));
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu
