// SPDX-License-Identifier: Apache-2.0
// The one implementation of BlockEngine, over the vector operations of a GEMM engine (`Isa`).
// Compiled once an instruction set: see gemm_pack.h for what that forbids.
//
// A tile of C has some rows, and the lines of a panel or of 16 of them. It reads the blocks of its
// panel one after the other, each with the units of A that meet it. Units of A lie row by row, in
// place where they can.
#pragma once
#include "base/rounding.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/sparse/blocks.h"

namespace anabatic::kernels::cpu {
namespace {

template <class Isa, int kSide>
struct BlockTiles {
  using Unit = typename Isa::Unit;
  using Vector = typename Isa::Vector;
  static constexpr bool kMultipliesPairs = !__is_same(Unit, float);
  static constexpr Int kUnitDepth = kMultipliesPairs ? 2 : 1;
  // With 32 registers a tile has all lines of a panel, else 16.
  static constexpr bool kIsWide = Isa::kLanes == 16;
  static constexpr int kTilePanels = kIsWide ? kSide / 16 : 1;
  static constexpr int kVectors = kTilePanels * 16 / static_cast<int>(Isa::kLanes);
  static constexpr int kPanelVectors = 16 / static_cast<int>(Isa::kLanes);
  static constexpr int kColumns = kTilePanels * 16;
  static constexpr int kRows = kIsWide ? 24 / kVectors : static_cast<int>(Isa::kRows);
  // Rows of a tile of dW.
  static constexpr int kGradientRows = kIsWide ? 16 / kVectors : kPanelVectors == 2 ? 4 : 2;
  static constexpr Int kSideUnits = kSide / kUnitDepth;

  struct Tile {
    const Unit* a;
    Int a_stride;
    const std::byte* b;  // at the tile's lines of its panel's first block
    const std::int32_t* steps;
    Int count;
    std::int32_t sum_steps;  // of one accumulator
    float* to;               // [kRows][kColumns]
  };

  // R rows. BUnit: float, or std::uint32_t for pairs.
  template <class BUnit, int R>
  static __attribute__((noinline)) void tile(const Tile& in) {
    constexpr bool kHasPairs = __is_same(BUnit, std::uint32_t);
    constexpr bool kSplits = kHasPairs && !kMultipliesPairs;
    constexpr Int kUnits = kSide / (kHasPairs ? 2 : 1), kGroup = kUnits * 16;
    constexpr int kFours = (R + 3) / 4;
    Vector sum[R][kVectors];
    const Unit* const a = in.a;
    const std::int32_t *step = in.steps, *const last = step + in.count;
    float* const to = in.to;
    // Opaque, so that the rows' addresses take one register for four rows and three more: g++ would
    // keep eleven offsets, and spill what else a block needs.
    Int one = in.a_stride, two = 2 * one, three = 3 * one;
    const Int four = 4 * one;
    asm("" : "+r"(one), "+r"(two), "+r"(three));
    const auto* b = reinterpret_cast<const BUnit*>(in.b);
    std::int32_t end = 0;
    bool is_first = true;
    do {
#pragma GCC unroll 24
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = Isa::zero();
      if (step < last)
        while (end <= *step) end += in.sum_steps;
      for (; step < last && *step < end; ++step, b += kGroup * kSide / 16) {
        const Unit* fours[kFours];
#pragma GCC unroll 6
        for (int f = 0; f < kFours; ++f) {
          fours[f] = a + *step * kSideUnits + f * four;
          asm("" : "+r"(fours[f]));
        }
        const auto add = [&](Int u, const typename Isa::Packed* right)
            __attribute__((always_inline)) {
#pragma GCC unroll 24
          for (int i = 0; i < R; ++i) {
            const Unit* row = fours[i / 4] + u;
            const typename Isa::Packed left = Isa::broadcast(i % 4 == 0   ? row
                                                             : i % 4 == 1 ? row + one
                                                             : i % 4 == 2 ? row + two
                                                                          : row + three);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
              sum[i][v] = Isa::multiply_add(sum[i][v], left, right[v]);
          }
        };
        const auto vector = [&](Int u, int v) __attribute__((always_inline)) {
          return b + v / kPanelVectors * kGroup + u * 16 + v % kPanelVectors * Isa::kLanes;
        };
#pragma GCC unroll 16
        for (Int u = 0; u < kUnits; ++u) {
          typename Isa::Packed right[kVectors];
          if constexpr (kSplits) {
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) right[v] = Isa::low(vector(u, v));
            add(2 * u, right);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) right[v] = Isa::high(vector(u, v));
            add(2 * u + 1, right);
          } else {
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) right[v] = Isa::load(vector(u, v));
            add(u, right);
          }
        }
      }
#pragma GCC unroll 24
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          float* at = to + i * kColumns + v * Isa::kLanes;
          Isa::store_sums(at, is_first ? sum[i][v] : Isa::load_sums(at) + sum[i][v]);
        }
      is_first = false;
    } while (step < last);
  }

  // As many rows as one tile takes of those that are left.
  template <class BUnit>
  static Int multiply_rows(const Tile& in, Int left) {
    if (left >= kRows) return tile<BUnit, kRows>(in), kRows;
    if constexpr (kRows > 16)
      if (left >= 16) return tile<BUnit, 16>(in), 16;
    if constexpr (kRows > 8)
      if (left >= 8) return tile<BUnit, 8>(in), 8;
    if constexpr (kRows > 4)
      if (left >= 4) return tile<BUnit, 4>(in), 4;
    if constexpr (kRows > 2)
      if (left >= 2) return tile<BUnit, 2>(in), 2;
    return tile<BUnit, 1>(in), 1;
  }

  static void finish_row(const BlockProduct& p, Int row, Int line, Int columns, float* sums) {
    if (p.bias != nullptr)
      for (Int n = 0; n < columns; ++n) sums[n] += p.bias[line + n];
    const Int at = row * p.lines + line;
    if (p.dtype == DType::kBFloat16) {
      auto* out = reinterpret_cast<std::uint16_t*>(p.c) + at;
      Int n = 0;
      for (; n + 16 <= columns; n += 16) Isa::narrow(out + n, sums + n);
      for (; n < columns; ++n) out[n] = cpu::narrow(sums[n]);
    } else {
      __builtin_memcpy(reinterpret_cast<float*>(p.c) + at, sums,
                       static_cast<std::size_t>(columns) * sizeof(float));
    }
  }

  // Units from row to row of a copy: rows begin in different sets of the cache.
  static Int copy_stride(const BlockProduct& p) {
    return (round_up(round_up(p.depth, Int{kSide}) / kUnitDepth, 16) / 16 | 1) * 16;
  }
  static Int workspace_bytes(const BlockProduct& p) {
    return smaller(kMostRows, round_up(p.rows, Int{kRows})) * copy_stride(p) * 4;
  }

  // Rows whose starts share few sets of the first cache are copied, as are those of another dtype
  // and those whose last step is shorter than a block.
  static bool is_read_in_place(const BlockProduct& p) {
    constexpr DType kOperand = kMultipliesPairs ? DType::kBFloat16 : DType::kFloat32;
    return p.dtype == kOperand && p.depth % kSide == 0 && p.depth * 4 / kUnitDepth % 2048 != 0;
  }

  template <class T>
  static void copy_rows(const BlockProduct& p, Int row_begin, Int row_end, Unit* to) {
    const Int stride = copy_stride(p);
    for (Int i = row_begin; i < row_end; ++i, to += stride) {
      const T* from = reinterpret_cast<const T*>(p.a) + i * p.depth;
      const Int units = round_up(p.depth, Int{kSide}) / kUnitDepth, whole = p.depth / kUnitDepth;
      for (Int u = whole; u < units; ++u) to[u] = 0;
      copy_row_exactly(to, from, p.depth);
    }
  }
  template <class T>
  static void copy_row_exactly(float* __restrict to, const T* __restrict from, Int depth) {
    for (Int k = 0; k < depth; ++k) to[k] = as_float(from[k]);
  }
  static void copy_row_exactly(std::uint32_t* to, const std::uint16_t* from, Int depth) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(depth) * 2);
  }

  static void copy(const BlockProduct& p, Int row_begin, Int row_end, Unit* to) {
    if constexpr (!kMultipliesPairs)
      if (p.dtype == DType::kFloat32) return copy_rows<float>(p, row_begin, row_end, to);
    copy_rows<std::uint16_t>(p, row_begin, row_end, to);
  }

  // Units of row `row_begin`, so many before those of the next, in place or copied.
  static const Unit* rows_of(const BlockProduct& p, Int row_begin, Int row_end,
                             std::byte* workspace, Int* stride) {
    if (is_read_in_place(p)) {
      *stride = p.depth / kUnitDepth;
      return reinterpret_cast<const Unit*>(p.a) + row_begin * *stride;
    }
    *stride = copy_stride(p);
    auto* units = reinterpret_cast<Unit*>(workspace);
    copy(p, row_begin, row_end, units);
    return units;
  }

  static void multiply(const BlockProduct& p, Int row_begin, Int row_end, Int panel_begin,
                       Int panel_end, std::byte* workspace) {
    Int stride = 0;
    const Unit* const a = rows_of(p, row_begin, row_end, workspace, &stride);
    if constexpr (!kMultipliesPairs)
      if (p.dtype == DType::kFloat32)
        return multiply_panels<float>(p, a, stride, row_begin, row_end, panel_begin, panel_end);
    multiply_panels<std::uint32_t>(p, a, stride, row_begin, row_end, panel_begin, panel_end);
  }

  // Some panels at a time, whose values stay in the second cache: the rows of a tile meet them all
  // while their units are in the first.
  static Int panels_end(const BlockProduct& p, Int begin, Int end, Int block_bytes) {
    constexpr Int kMostBytes = Int{384} << 10;
    Int panel = begin + 1;
    while (panel < end && (p.offsets[panel + 1] - p.offsets[begin]) * block_bytes <= kMostBytes)
      ++panel;
    return panel;
  }

  template <class BUnit>
  static void multiply_panels(const BlockProduct& p, const Unit* a, Int stride, Int row_begin,
                              Int row_end, Int panel_begin, Int panel_end) {
    constexpr Int kGroupBytes = kSide * 16 * (__is_same(BUnit, float) ? 4 : 2);
    for (Int first = panel_begin; first < panel_end;) {
      const Int last = panels_end(p, first, panel_end, kGroupBytes * (kSide / 16));
      Int count = 0;
      for (Int row = row_begin; row < row_end; row += count) {
        // The units of the next tile come in meanwhile, some lines of the cache a panel: a tile
        // reads what its blocks meet, which no hardware foresees.
        const Unit* units = a + (row - row_begin) * stride;
        // After the last one it is most likely the first of the next call.
        const Int left = smaller<Int>(kRows, p.rows + p.later_rows - row - kRows);
        const Int lines = first == panel_begin && left > 0 ? left * stride / 16 : 0;
        const Int share = ceil_div(lines, last - first);
        Int next = kRows * stride / 16;
        const Int end = next + lines;
        for (Int panel = first; panel < last; ++panel) {
          for (Int n = 0; n < share && next < end; ++n, ++next)
            __builtin_prefetch(units + next * 16, 0, 3);
          count = multiply_panel<BUnit>(p, units, stride, row, row_end, panel);
        }
      }
      first = last;
    }
  }

  // As many rows from `row` on as a tile takes, and the lines of one panel. Returns the former.
  template <class BUnit>
  static Int multiply_panel(const BlockProduct& p, const Unit* a, Int stride, Int row, Int row_end,
                            Int panel) {
    constexpr Int kGroupBytes = kSide * 16 * (__is_same(BUnit, float) ? 4 : 2);
    alignas(64) float sums[kRows * kColumns];
    const std::int32_t begin = p.offsets[panel];
    Tile call;
    call.a = a;
    call.a_stride = stride;
    call.steps = p.steps + begin;
    call.count = p.offsets[panel + 1] - begin;
    call.sum_steps = static_cast<std::int32_t>(p.sum_terms / kSide);
    call.to = sums;
    Int count = 0;
    for (Int part = 0; part < kSide / kColumns; ++part) {
      const Int line = panel * kSide + part * kColumns;
      if (line >= p.lines) break;
      call.b = p.values + begin * kGroupBytes * (kSide / 16) + part * kTilePanels * kGroupBytes;
      if (p.dtype != DType::kBFloat16 || p.bias != nullptr || line + kColumns > p.lines) {
        count = multiply_rows<BUnit>(call, row_end - row);
        for (Int i = 0; i < count; ++i)
          finish_row(p, row + i, line, smaller<Int>(kColumns, p.lines - line), sums + i * kColumns);
        continue;
      }
      auto* out = reinterpret_cast<std::uint16_t*>(p.c) + row * p.lines + line;
      const Int rows = smaller<Int>(kRows, row_end - row);
      if (line + 2 * kColumns <= p.lines)  // the next tile's
        for (Int i = 0; i < rows; ++i) __builtin_prefetch(out + i * p.lines + kColumns, 1);
      count = multiply_rows<BUnit>(call, row_end - row);
      for (Int i = 0; i < count; ++i)
#pragma GCC unroll 2
        for (Int n = 0; n < kColumns; n += 16)
          Isa::narrow(out + i * p.lines + n, sums + i * kColumns + n);
    }
    return count;
  }

  // Gradients.

  struct GradientTile {
    const Unit *a, *b;     // at the tile's rows of a panel of dy, and at panels of x
    Int units, sum_units;  // of the tokens
    Int panel;             // units from one panel of x to the next
    float* to;
    Int stride;
    bool adds;
    const float* next;  // of the next tile: fetched
  };

  static __attribute__((noinline)) void gradient_tile(const GradientTile& in) {
    constexpr int R = kGradientRows;
    Vector sum[R][kVectors];
    const Unit *a = in.a, *b = in.b;
    const Int panel = in.panel;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) __builtin_prefetch(in.next + i * in.stride, 1);
    bool adds = in.adds;
    Int left = in.units;
    do {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = Isa::zero();
      const Int units = smaller(left, in.sum_units);
      left -= units;
#pragma GCC unroll 2
      for (Int u = units; u > 0; --u, a += 16, b += 16) {
        typename Isa::Packed right[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          right[v] = Isa::load(b + v / kPanelVectors * panel + v % kPanelVectors * Isa::kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
          const typename Isa::Packed factor = Isa::broadcast(a + i);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v)
            sum[i][v] = Isa::multiply_add(sum[i][v], factor, right[v]);
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          float* to = in.to + i * in.stride + v * Isa::kLanes;
          Isa::store_sums(to, adds ? Isa::load_sums(to) + sum[i][v] : sum[i][v]);
        }
      adds = true;
    } while (left > 0);
  }

  static Int units_of(Int rows) { return ceil_div(rows, kUnitDepth); }

  // Columns [0, width) of two rows as sixteen pairs each, or of one row as f32; zero beyond.
  static void pack_line(std::uint32_t* to, Int panel, const std::uint16_t* first,
                        const std::uint16_t* second, Int width, Int panels) {
    for (Int j = 0; j < panels; ++j) {
      std::uint32_t* unit = to + j * panel;
      const Int column = j * 16;
      if (column + 16 <= width && second != nullptr) {
        pairs16(unit, first + column, second + column);
        continue;
      }
      for (Int i = 0; i < 16; ++i)
        unit[i] = column + i >= width
                      ? 0u
                      : pair(first[column + i],
                             second != nullptr ? second[column + i] : std::uint16_t{0});
    }
  }
  template <class T>
  static void pack_line(float* to, Int panel, const T* from, const T*, Int width, Int panels) {
    for (Int j = 0; j < panels; ++j) {
      float* unit = to + j * panel;
      const Int column = j * 16;
      if (column + 16 <= width)
        for (Int i = 0; i < 16; ++i) unit[i] = as_float(from[column + i]);
      else
        for (Int i = 0; i < 16; ++i)
          unit[i] = column + i < width ? as_float(from[column + i]) : 0.0f;
    }
  }

  // `columns` from column `first` on of units [unit_begin, unit_end), of rows of `width`.
  struct Lines {
    const std::byte* from;
    Int width, first, columns;
  };
  template <class T>
  static void pack_units(const BlockGradient& g, const Lines& lines, Int unit_begin, Int unit_end,
                         Unit* to) {
    constexpr Int kAhead = 64;
    const Int panel = units_of(g.rows) * 16,
              panels = ceil_div(lines.columns, Int{kSide}) * (kSide / 16);
    const T* from = reinterpret_cast<const T*>(lines.from) + lines.first;
    for (Int u = unit_begin; u < unit_end; ++u) {
      const Int row = u * kUnitDepth;
      if (lines.columns <= kSide)  // rows are far apart, and memory is some units away
        for (Int ahead = row + kAhead; ahead < smaller(g.rows, row + kAhead + kUnitDepth); ++ahead)
          prefetch_row(from + ahead * lines.width, kSide * Int{sizeof(T)});
      pack_line(to + u * 16, panel, from + row * lines.width,
                row + 1 < g.rows ? from + (row + 1) * lines.width : nullptr, lines.columns, panels);
    }
  }
  static void pack_lines(const BlockGradient& g, const Lines& lines, Int unit_begin, Int unit_end,
                         std::byte* to) {
    auto* units = reinterpret_cast<Unit*>(to);
    if constexpr (!kMultipliesPairs)
      if (g.dtype == DType::kFloat32)
        return pack_units<float>(g, lines, unit_begin, unit_end, units);
    pack_units<std::uint16_t>(g, lines, unit_begin, unit_end, units);
  }
  static void pack(const BlockGradient& g, Int unit_begin, Int unit_end) {
    pack_lines(g, {.from = g.x, .width = g.in, .first = 0, .columns = g.in}, unit_begin, unit_end,
               g.x_panels);
  }

  // Zeroes what no block of a panel of dW covers.
  static void clear_absent(const BlockGradient& g, Int panel) {
    const Int first = panel * kSide, rows = smaller<Int>(kSide, g.out - first);
    const bool streams =
        g.streams && g.in % 16 == 0 && reinterpret_cast<std::uintptr_t>(g.dw) % 64 == 0;
    alignas(64) const float zeroes[16] = {};
    const auto clear = [&](Int begin, Int end) {
      if (begin >= end) return;
      for (Int r = 0; r < rows; ++r) {
        float* to = g.dw + (first + r) * g.in;
        if (streams)
          for (Int k = begin; k < end; k += 16) Isa::stream(to + k, zeroes);
        else
          __builtin_memset(to + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
      }
    };
    Int column = 0;
    for (std::int32_t n = g.offsets[panel]; n < g.offsets[panel + 1]; ++n) {
      clear(column, g.steps[n] * Int{kSide});
      column = (g.steps[n] + 1) * Int{kSide};
    }
    clear(column, g.in);
    if (streams) Isa::end_stream();  // before another thread may read
  }

  // Fetches the columns of dy that the next panel packs, some rows a tile of this one.
  class NextPanel {
   public:
    NextPanel(const BlockGradient& g, Int panel, Int tiles)
        : row_bytes_(g.out * size_bytes(g.dtype)),
          bytes_(smaller<Int>(kSide, g.out - panel * kSide) * size_bytes(g.dtype)),
          share_(ceil_div(g.rows, tiles > 0 ? tiles : 1)),
          left_(g.rows),
          row_(g.dy + panel * kSide * size_bytes(g.dtype)) {}

    void fetch_some() {
      for (Int n = 0; n < share_ && left_ > 0; ++n, --left_, row_ += row_bytes_)
        prefetch_row(row_, bytes_);
    }

   private:
    Int row_bytes_, bytes_, share_, left_;
    const std::byte* row_;
  };

  static void gradient(const BlockGradient& g, Int panel_begin, Int panel_end,
                       std::byte* workspace) {
    for (Int panel = panel_begin; panel < panel_end; ++panel) {
      const Int tiles = (g.offsets[panel + 1] - g.offsets[panel]) * (kSide / kColumns) *
                        ceil_div(Int{kSide}, Int{kGradientRows});
      NextPanel next(g, panel + 1 < panel_end ? panel + 1 : panel, tiles);
      gradient_of_panel(g, panel, workspace, panel + 1 < panel_end ? &next : nullptr);
    }
  }

  static void gradient_of_panel(const BlockGradient& g, Int panel, std::byte* workspace,
                                NextPanel* next_panel) {
    if (!g.accumulate && !g.leaves_absent) clear_absent(g, panel);
    if (g.offsets[panel] == g.offsets[panel + 1] || (g.accumulate && g.rows == 0)) return;
    const Int first = panel * kSide, rows = smaller<Int>(kSide, g.out - first);
    const Int units = units_of(g.rows);
    alignas(64) float sums[kGradientRows * kColumns];
    GradientTile call;
    call.units = units;
    call.sum_units = g.sum_terms / kUnitDepth;
    call.panel = units * 16;
    const auto* x = reinterpret_cast<const Unit*>(g.x_panels);
    const auto* dy = reinterpret_cast<const Unit*>(workspace);
    pack_lines(g, {.from = g.dy, .width = g.out, .first = first, .columns = rows}, 0, units,
               workspace);
    for (std::int32_t n = g.offsets[panel]; n < g.offsets[panel + 1]; ++n)
      for (Int part = 0; part < kSide / kColumns; ++part) {
        const Int column = g.steps[n] * Int{kSide} + part * kColumns,
                  columns = smaller<Int>(kColumns, g.in - column);
        call.b = x + column / 16 * call.panel;
        for (Int r = 0; r < rows; r += kGradientRows) {
          call.a = dy + r / 16 * call.panel + r % 16;
          const Int count = smaller<Int>(kGradientRows, rows - r);
          float* c = g.dw + (first + r) * g.in + column;
          const bool is_whole = count == kGradientRows && columns == kColumns;
          const bool has_next = is_whole && r + 2 * kGradientRows <= rows;
          call.to = is_whole ? c : sums;
          call.stride = is_whole ? g.in : Int{kColumns};
          call.adds = g.accumulate;
          if (!is_whole && g.accumulate)
            for (Int i = 0; i < kGradientRows; ++i)
              for (Int j = 0; j < kColumns; ++j)
                sums[i * kColumns + j] = i < count && j < columns ? c[i * g.in + j] : 0.0f;
          const std::int32_t after = n + 1 < g.offsets[panel + 1] ? g.steps[n + 1] : -1;
          const bool has_block = is_whole && after >= 0 && (after + 1) * Int{kSide} <= g.in;
          call.next = has_next    ? c + kGradientRows * g.in
                      : has_block ? g.dw + first * g.in + after * Int{kSide}
                                  : call.to;
          if (next_panel != nullptr) next_panel->fetch_some();
          gradient_tile(call);
          if (is_whole) continue;
          for (Int i = 0; i < count; ++i)
            for (Int j = 0; j < columns; ++j) c[i * g.in + j] = sums[i * kColumns + j];
        }
      }
  }

  static constexpr Int kMostRows = 96;
};

}  // namespace
}  // namespace anabatic::kernels::cpu
