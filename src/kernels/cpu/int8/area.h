// SPDX-License-Identifier: Apache-2.0
// The one implementation of Int8Engine::compute, over a tile of an instruction set (`Isa`).
// Compiled once an instruction set: see gemm_pack.h for what that forbids.
//
// Outside in: strips of columns, whose panels stay in the caches; tiles of rows, which stream by.
// While the tiles of a strip are computed, the next strip is fetched.
#pragma once
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/int8/products.h"

namespace anabatic::kernels::cpu {
namespace {

inline constexpr Int kBlockUnits = kInt8Block / kInt8Unit;
// 1 / 254 in f32: what a second code counts.
inline constexpr float kSecondScale = 1.0f / 254.0f;

// What a tile of some rows by some panels reads and writes. Strides count elements.
struct Int8Tile {
  Int units;  // of the depth
  const std::int8_t* a;
  Int a_row, a_unit;  // from row to row, and from unit to unit
  const BFloat16* a_scales;
  Int a_scale_row, a_scale_block;
  const std::int8_t* a_second;  // as a, or null
  const std::uint16_t* a_falls_back;
  const std::int8_t* b;
  const BFloat16* b_scales;
  const std::int32_t* compensation;
  Int b_panel, scale_panel;     // from panel to panel
  const std::int8_t* b_second;  // as b, or null
  const std::int32_t* second_compensation;
  const std::uint16_t* b_falls_back;
  Int flag_panel;
  const float* from;  // where the chains begin; null: at zero
  Int from_stride;
  float* to;
  Int to_stride;
  bool streams;
  // Lines of the next strip that are fetched with each block, and their number.
  const std::int8_t* ahead;
  Int ahead_lines;
};
using TileFunction = void (*)(const Int8Tile&);

inline Int units_of_block(Int units, Int block) {
  return smaller(kBlockUnits, units - block * kBlockUnits);
}

// Isa: kRows and kPanels of a tile; tile(rows, panels): its function; narrow, stream, end_stream.
template <class Isa>
struct Int8Compute {
  static constexpr Int kRows = Isa::kRows, kColumns = Isa::kPanels * kInt8Panel;

  static void compute(const Int8Product& product, const Int8Area& area) {
    const Int units = int8_units(product.depth), blocks = int8_blocks(product.depth);
    alignas(64) float sums[kRows * kColumns];
    Int8Tile tile;
    tile.units = units;
    tile.b_panel = units * kInt8Panel * kInt8Unit;
    tile.scale_panel = blocks * kInt8Panel;
    tile.flag_panel = blocks;
    tile.streams = product.streams;
    for (Int j = area.column_begin; j < area.column_end; j += kColumns) {
      const Int columns = smaller(kColumns, area.column_end - j);
      set_panels(product, j / kInt8Panel, tile);
      const Int tiles = ceil_div(area.row_end - area.row_begin, kRows);
      const bool has_next = j + kColumns < area.column_end;
      const Int lines =
          smaller(kColumns, area.column_end - j - columns) / kInt8Panel * tile.b_panel / 64;
      tile.ahead_lines = has_next ? ceil_div(lines, larger(tiles * blocks, Int{1})) : 0;
      tile.ahead = tile.b + Isa::kPanels * tile.b_panel;
      const bool is_whole = columns % kInt8Panel == 0 && product.c_dtype == DType::kFloat32;
      for (Int i = area.row_begin; i < area.row_end; i += kRows) {
        const Int rows = smaller(kRows, area.row_end - i);
        set_rows(product, i, tile);
        float* c = reinterpret_cast<float*>(product.c) + i * product.c_stride + j;
        tile.to = is_whole ? c : sums;
        tile.to_stride = is_whole ? product.c_stride : kColumns;
        tile.from = product.accumulate ? tile.to : nullptr;
        tile.from_stride = tile.to_stride;
        if (product.accumulate && !is_whole)
          copy(sums, kColumns, c, product.c_stride, rows, columns);
        tile.streams = product.streams && is_whole;
        Isa::tile(static_cast<int>(rows), static_cast<int>(ceil_div(columns, kInt8Panel)))(tile);
        if (!is_whole) finish(product, i, j, rows, columns, sums);
        tile.ahead += tile.ahead_lines * blocks * 64;
      }
    }
    if (product.streams) Isa::end_stream();  // before another thread may read
  }

 private:
  static void set_panels(const Int8Product& product, Int panel, Int8Tile& tile) {
    const Int8Lines& b = product.b;
    tile.b = b.codes + panel * tile.b_panel;
    tile.b_scales = b.scales + panel * tile.scale_panel;
    tile.compensation = b.compensation + panel * tile.scale_panel;
    tile.b_second = nullptr;
    if (b.second_codes == nullptr) return;
    tile.b_second = b.second_codes + panel * tile.b_panel;
    tile.second_compensation = b.second_compensation + panel * tile.scale_panel;
    tile.b_falls_back = b.falls_back + panel * tile.flag_panel;
  }

  static void set_rows(const Int8Product& product, Int i, Int8Tile& tile) {
    const Int8Lines& a = product.a;
    tile.a_second = nullptr;
    if (a.in_panels()) {
      const Int panel = i / kInt8Panel, lane = i % kInt8Panel;
      tile.a = a.codes + panel * tile.b_panel + lane * kInt8Unit;
      tile.a_row = kInt8Unit;
      tile.a_unit = kInt8Panel * kInt8Unit;
      tile.a_scales = a.scales + panel * tile.scale_panel + lane;
      tile.a_scale_row = 1;
      tile.a_scale_block = kInt8Panel;
      return;
    }
    tile.a = a.codes + i * a.line_stride;
    tile.a_row = a.line_stride;
    tile.a_unit = kInt8Unit;
    tile.a_scales = a.scales + i * a.scale_stride;
    tile.a_scale_row = a.scale_stride;
    tile.a_scale_block = 1;
    if (a.second_codes == nullptr) return;
    tile.a_second = a.second_codes + i * a.line_stride;
    tile.a_falls_back = a.falls_back + i * a.scale_stride;
  }

  static void copy(float* to, Int to_stride, const float* from, Int from_stride, Int rows,
                   Int columns) {
    for (Int r = 0; r < rows; ++r)
      for (Int n = 0; n < columns; ++n) to[r * to_stride + n] = from[r * from_stride + n];
  }

  static void finish(const Int8Product& product, Int i, Int j, Int rows, Int columns,
                     const float* sums) {
    if (product.c_dtype == DType::kFloat32) {
      copy(reinterpret_cast<float*>(product.c) + i * product.c_stride + j, product.c_stride, sums,
           kColumns, rows, columns);
      return;
    }
    for (Int r = 0; r < rows; ++r) {
      std::uint16_t* to =
          reinterpret_cast<std::uint16_t*>(product.c) + (i + r) * product.c_stride + j;
      const float* from = sums + r * kColumns;
      Int n = 0;
      for (; n + kInt8Panel <= columns; n += kInt8Panel) Isa::narrow(to + n, from + n);
      for (; n < columns; ++n) to[n] = cpu::narrow(from[n]);
    }
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu
