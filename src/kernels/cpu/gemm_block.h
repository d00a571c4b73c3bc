// SPDX-License-Identifier: Apache-2.0
// The one implementation of GemmEngine::compute, over a small set of vector operations (`Isa`).
// Compiled once an instruction set: see gemm_pack.h for what that forbids.
//
// Outside in: blocks of the depth; panels of B, of which one stays in L1; tiles of A's rows, which
// were copied to the workspace as units and stream from L2. While the rows of one panel are
// computed, the next panel is prefetched, so few rows do not wait for a weight that lies in memory;
// so are the next tile's sums, where C has some.
#pragma once
#include <utility>

#include "base/rounding.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/square_sums.h"

namespace anabatic::kernels::cpu {
namespace {

// Isa::Tiles where the processor has registers of whole tiles, else nothing.
template <class Isa>
struct TilesOf {
  struct type {};
};
template <class Isa>
requires requires { typename Isa::Tiles; }
struct TilesOf<Isa> {
  using type = typename Isa::Tiles;
};

template <class Isa>
struct GemmBlock {
  using Unit = typename Isa::Unit;  // of A
  using Vector = typename Isa::Vector;
  static constexpr Int kLanes = Isa::kLanes, kRows = Isa::kRows, kVectors = Isa::kVectors;
  static constexpr Int kTileColumns = kLanes * kVectors;
  static constexpr Int kTilePanels = kTileColumns / kPanel;
  static constexpr int kPanelVectors = static_cast<int>(kPanel / kLanes);
  using A = PackA<Unit, kRows>;
  // Isa::Tiles multiplies in place of `tile`. It reads A row by row, whichever way A is stored.
  static constexpr bool kHasTiles = requires { typename Isa::Tiles; };

  struct Step {
    const Gemm& gemm;
    const Block& block;
    Int k0, depth, units;  // units of B
    bool first, last;
    Int row_begin, row_end;  // of the part of the block that A holds
    float* partial;  // [block rows, block columns]: sums between blocks of the depth, unless C
                     // holds them
  };

  // From row to row, and from one panel's columns to the next.
  struct Floats {
    float* data;
    Int stride;
    Int panel_stride = kPanel;

    float* vector(int row, int v) const {
      return data + row * stride + v / kPanelVectors * panel_stride + v % kPanelVectors * kLanes;
    }
  };

  // What a tile reads, and what is to be prefetched meanwhile.
  struct TileCall {
    Int units;  // of B
    const Unit* a;
    const std::byte* b;
    Int panel_bytes;  // from one panel to the next
    const std::byte* ahead;
    Int ahead_step;
    Int sum_units;    // that one accumulator sums at most
    Floats from, to;  // sums so far (null: none), and where they go
    Floats next;      // sums so far of the next tile, fetched a row at a time; null: none
  };
  using Tile = void (*)(const TileCall&);

  // R rows by V vectors. BUnit: float, Float16, or std::uint32_t for pairs.
  template <class BUnit, bool kInterleaved, int R, int V>
  static __attribute__((noinline)) void tile(const TileCall& in) {
    constexpr bool kSplits = __is_same(BUnit, std::uint32_t) && __is_same(Unit, float);
    constexpr Int kRowStep = kInterleaved ? 1 : A::kRowStride;
    constexpr Int kUnitStep = kInterleaved ? kRows : 1;
    Vector sum[R][V];
    const auto add = [&](const Unit* a, const typename Isa::Packed* right)
        __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const typename Isa::Packed left = Isa::broadcast(a + i * kRowStep);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[i][v] = Isa::multiply_add(sum[i][v], left, right[v]);
      }
    };
    const Unit* a = in.a;
    const std::byte* b = in.b;
    const std::byte* ahead = in.ahead;
    const Int panel_bytes = in.panel_bytes, ahead_step = in.ahead_step;
    const auto at = [&](int v) __attribute__((always_inline)) {
      return reinterpret_cast<const BUnit*>(b + v / kPanelVectors * panel_bytes) +
             v % kPanelVectors * kLanes;
    };
    const auto run = [&](Int units) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (Int u = units; u > 0; --u) {
#pragma GCC unroll 3
        for (Int p = 0; p < kTilePanels; ++p) __builtin_prefetch(ahead + p * panel_bytes, 0, 2);
        typename Isa::Packed right[V];
        if constexpr (kSplits) {
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) right[v] = Isa::low(at(v));
          add(a, right);
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) right[v] = Isa::high(at(v));
          add(a + kUnitStep, right);
          a += 2 * kUnitStep;
        } else {
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) right[v] = Isa::load(at(v));
          add(a, right);
          a += kUnitStep;
        }
        b += kPanel * sizeof(BUnit);
        ahead += ahead_step;
      }
    };
    // Accumulators start at zero: what was summed before is added once, after their terms.
    const auto clear = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[i][v] = Isa::zero();
    };
    const auto store = [&](const Floats* before) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          if (before != nullptr) sum[i][v] = Isa::load_sums(before->vector(i, v)) + sum[i][v];
          Isa::store_sums(in.to.vector(i, v), sum[i][v]);
        }
    };
    const Floats* before = in.from.data == nullptr ? nullptr : &in.from;
    Int left = in.units;
    do {
      Int of_sum = smaller(left, in.sum_units);
      left -= of_sum;
      clear();
      // All rows of the next tile at once would fill the processor's list of lines under way, and
      // the products would wait.
      const int parts = in.next.data == nullptr || left > 0 ? 1 : R;
      for (int part = 0; part < parts; ++part) {
        if (parts > 1)
#pragma GCC unroll 3
          for (int p = 0; p < kTilePanels; ++p)
            __builtin_prefetch(in.next.vector(part, p * kPanelVectors), 1);
        const Int units = of_sum / (parts - part);
        of_sum -= units;
        run(units);
      }
      before == nullptr ? store(nullptr) : store(before);
      before = &in.to;
    } while (left > 0);
  }

  template <class BUnit, int V, int... R>
  static Tile by_rows(Int rows, std::integer_sequence<int, R...>) {
    static constexpr Tile kTiles[] = {&tile<BUnit, false, R + 1, V>...};
    return kTiles[rows - 1];
  }
  template <class BUnit, bool kInterleaved, int V = 1>
  static Tile tile_of(Int rows, Int vectors) {
    if constexpr (V < kVectors)
      if (vectors > V) return tile_of<BUnit, kInterleaved, V + 1>(rows, vectors);
    if constexpr (kInterleaved) return &tile<BUnit, true, static_cast<int>(kRows), V>;
    return by_rows<BUnit, V>(rows, std::make_integer_sequence<int, static_cast<int>(kRows)>{});
  }
  template <bool kInterleaved>
  static Tile tile_of(const Matrix& b, Int rows, Int vectors) {
    if constexpr (__is_same(Unit, float)) {
      if constexpr (!kInterleaved)  // B of a weight gradient does not come packed
        if (has_half_panels(b)) return tile_of<Float16, kInterleaved>(rows, vectors);
      if (!has_pairs(b)) return tile_of<float, kInterleaved>(rows, vectors);
    }
    return tile_of<std::uint32_t, kInterleaved>(rows, vectors);
  }

  static bool is_gradient(const Gemm& gemm) { return gemm.a.column_stride != 1; }
  // Units of B are pairs of bf16, or single elements: f32, or f16 as it came packed.
  static constexpr bool has_pairs(const Matrix& b) {
    return b.dtype != DType::kFloat32 && b.dtype != DType::kFloat16;
  }
  static constexpr bool has_half_panels(const Matrix& b) {
    return b.is_packed && b.dtype == DType::kFloat16;
  }
  static constexpr Int unit_depth(const Matrix& b) { return has_pairs(b) ? 2 : 1; }
  static constexpr Int unit_bytes(const Matrix& b) { return has_half_panels(b) ? 2 : 4; }

  // Blocks of the depth fill an L1-sized panel and a row of units.
  static constexpr Int packed_depth(const Gemm& gemm) {
    return is_gradient(gemm)   ? Isa::kGradientDepth
           : has_pairs(gemm.b) ? Isa::kPairDepth
                               : Isa::kFloatDepth;
  }
  static Int sum_terms(const Gemm& gemm) {
    const Int most = smaller(packed_depth(gemm), kMostSumTerms);
    return gemm.sum_terms > 0 ? smaller(gemm.sum_terms, most) : most;
  }

  // Rows of A that are packed at a time. Many such parts read the panels of B where these are made
  // for the block: of a weight gradient, or of quantised elements.
  static Int part_rows(const Gemm& gemm) {
    return (is_gradient(gemm) ? Isa::kGradientRows : Isa::kBlockRows) / kRows * kRows;
  }
  static constexpr Int kGradientParts = 8, kDequantizedParts = 4;

  static Blocking blocking(const Gemm& gemm) {
    if (is_gradient(gemm))
      return {.rows = kGradientParts * part_rows(gemm),
              .columns = Isa::kGradientColumns,
              .row_step = kRows,
              .column_step = kTileColumns};
    return {.rows = (gemm.b.scale_columns > 0 ? kDequantizedParts : 1) * part_rows(gemm),
            .columns = gemm.b.is_packed ? Isa::kPackedColumns : Isa::kColumns,
            .row_step = kRows,
            .column_step = round_up(kTileColumns, kPanel)};
  }

  // Whether C holds sums between blocks of the depth.
  static bool sums_are_in_c(const Gemm& gemm) {
    return gemm.c_dtype == DType::kFloat32 && gemm.c_column_step == 1;
  }

  struct Workspace {
    Unit* a;
    std::byte* b;
    float* partial;
    Int bytes;
  };
  // A null base only counts.
  static Workspace workspace(const Gemm& gemm, std::byte* base) {
    const Blocking most = blocking(gemm);
    const Int longest =
        is_gradient(gemm) ? Isa::kGradientDepth : larger(Isa::kFloatDepth, Isa::kPairDepth);
    Int deepest = gemm.depth;
    for (Int p = 0; p < gemm.num_further; ++p) deepest = larger(deepest, gemm.further[p].depth);
    const Int depth = smaller(longest, round_up(larger<Int>(deepest, 1), 2));
    const Int rows = smaller(most.rows, round_up(gemm.rows, kRows));
    const Int columns = smaller(most.columns, round_up(gemm.columns, kPanel));
    const Int a_rows = smaller(rows, part_rows(gemm));
    const Int a_units = is_gradient(gemm) && !kHasTiles
                            ? a_rows / kRows * A::tile_stride(A::units_of(depth))
                            : a_rows * A::kRowStride;
    const Int a_bytes = round_up(a_units * 4 + 64, 64);
    const Int b_bytes = gemm.b.is_packed ? 0 : columns * depth * 4 / unit_depth(gemm.b);
    const bool has_partial =
        !sums_are_in_c(gemm) && (gemm.num_further > 0 || gemm.depth > packed_depth(gemm));
    const Int partial_bytes = has_partial ? rows * round_up(columns, kTileColumns) * 4 : 0;
    const Int bytes = a_bytes + b_bytes + partial_bytes;
    if (base == nullptr) return {.a = nullptr, .b = nullptr, .partial = nullptr, .bytes = bytes};
    return {.a = reinterpret_cast<Unit*>(base),
            .b = base + a_bytes,
            .partial = reinterpret_cast<float*>(base + a_bytes + b_bytes),
            .bytes = bytes};
  }
  static Int workspace_bytes(const Gemm& gemm) { return workspace(gemm, nullptr).bytes; }

  // Element (i, j) of C; j is a multiple of 16.
  static Int place_of(const Gemm& gemm, Int i, Int j) {
    return i * gemm.c_stride + j / kPanel * gemm.c_panel_stride;
  }

  static float* sums_in_c(const Gemm& gemm, Int i, Int j) {
    return reinterpret_cast<float*>(gemm.c) + place_of(gemm, i, j);
  }
  // Whether C holds the sums so far.
  static bool continues(const Step& step) {
    return sums_are_in_c(step.gemm) && (!step.first || step.gemm.accumulate);
  }

  // The lines of a tile of C that is written without being read, before its turn.
  static void prefetch(const Step& step, Int i, Int j) {
    const Gemm& gemm = step.gemm;
    const Int size = gemm.c_dtype == DType::kFloat32 ? 4 : 2;
    const Int rows = smaller(kRows, step.row_end - i);
    if (gemm.c_in_panels) {
      for (Int p = 0; p < kTilePanels; ++p)
        for (Int r = 0; r < rows; ++r)
          __builtin_prefetch(gemm.c + place_of(gemm, i + r, j + p * kPanel) * size, 1);
      return;
    }
    const std::byte* c = gemm.c + place_of(gemm, i, j) * size;
    for (Int r = 0; r < rows; ++r)
      for (Int n = 0; n < kTileColumns * gemm.c_column_step * size; n += 64)
        __builtin_prefetch(c + r * gemm.c_stride * size + n, 1);
  }

  static void finish_row(const Step& step, float* __restrict sums, std::byte* c, Int j,
                         Int columns) {
    const Gemm& gemm = step.gemm;
    if (step.last && gemm.bias != nullptr)
      for (Int n = 0; n < columns; ++n) sums[n] += gemm.bias[j + n];
    if (gemm.c_column_step != 1) return finish_steps(gemm, sums, c, columns);
    if (gemm.c_dtype == DType::kBFloat16) {
      auto* out = reinterpret_cast<std::uint16_t*>(c);
      Int n = 0;
      for (; n + kPanel <= columns; n += kPanel) Isa::narrow(out + n, sums + n);
      for (; n < columns; ++n) out[n] = cpu::narrow(sums[n]);
    } else if (gemm.c_dtype == DType::kFloat16) {
      convert_halves(reinterpret_cast<Float16*>(c), sums, columns);
    } else {
      auto* out = reinterpret_cast<float*>(c);
      for (Int n = 0; n < columns; ++n) out[n] = sums[n];
    }
  }

  static void finish_steps(const Gemm& gemm, const float* sums, std::byte* c, Int columns) {
    const Int step = gemm.c_column_step;
    if (gemm.c_dtype == DType::kBFloat16) {
      auto* out = reinterpret_cast<std::uint16_t*>(c);
      for (Int n = 0; n < columns; ++n) out[n * step] = cpu::narrow(sums[n]);
    } else if (gemm.c_dtype == DType::kFloat16) {
      auto* out = reinterpret_cast<std::uint16_t*>(c);
      for (Int n = 0; n < columns; ++n) out[n * step] = float_to_half(sums[n]);
    } else {
      auto* out = reinterpret_cast<float*>(c);
      for (Int n = 0; n < columns; ++n) out[n * step] = sums[n];
    }
  }

  // What goes through C between blocks of the depth is in the caches anyway.
  static bool streams(const Step& step) { return step.gemm.streams && step.first && step.last; }

  // Sums, [rows][kTileColumns], to C: over the whole depth unless C holds them.
  static void finish(const Step& step, Int i, Int j, Int rows, Int columns, float* sums) {
    const Gemm& gemm = step.gemm;
    if (streams(step) && columns % kPanel == 0) {
      for (Int r = 0; r < rows; ++r)
        for (Int n = 0; n < columns; n += kPanel)
          Isa::stream(reinterpret_cast<float*>(gemm.c) + place_of(gemm, i + r, j + n),
                      sums + r * kTileColumns + n);
      return;
    }
    const Int size = gemm.c_dtype == DType::kFloat32 ? 4 : 2;
    if (gemm.c_in_panels) {
      for (Int r = 0; r < rows; ++r)
        for (Int n = 0; n < columns; n += kPanel)
          finish_row(step, sums + r * kTileColumns + n,
                     gemm.c + place_of(gemm, i + r, j + n) * size, j + n, kPanel);
      return;
    }
    for (Int r = 0; r < rows; ++r)
      finish_row(step, sums + r * kTileColumns, gemm.c + place_of(gemm, i + r, j) * size, j,
                 columns);
  }

  static void set(Floats& to, float* data, Int stride, Int panel_stride) {
    to.data = data;
    to.stride = stride;
    to.panel_stride = panel_stride;
  }

  // Where a tile's sums come from and go to. Between blocks of the depth they are in C if it holds
  // sums, else in `partial`, which has room for whole tiles. Tiles that are no whole vectors of C,
  // and those that are to be finished, go through `buffer`, [kRows][kTileColumns].
  //
  // Word by word, into the call itself: a copy of words as a vector waits until every store before
  // it has left the processor, C's among them (5 % of a product of bf16 pairs).
  static void place_sums(const Step& step, Int i, Int j, bool is_whole, Int rows, Int columns,
                         float* buffer, TileCall& call) {
    const Gemm& gemm = step.gemm;
    const Block& block = step.block;
    if (!sums_are_in_c(gemm)) {
      const Int stride = round_up(block.column_end - block.column_begin, kTileColumns);
      float* partial = step.partial + (i - block.row_begin) * stride + (j - block.column_begin);
      set(call.from, step.first ? nullptr : partial, stride, kPanel);
      set(call.to, step.last ? buffer : partial, step.last ? kTileColumns : stride, kPanel);
      return;
    }
    float* c = sums_in_c(gemm, i, j);
    const bool reads = continues(step);
    if (is_whole) {
      const bool finishes = step.last && (gemm.bias != nullptr || streams(step));
      set(call.from, reads ? c : nullptr, gemm.c_stride, gemm.c_panel_stride);
      set(call.to, finishes ? buffer : c, finishes ? kTileColumns : gemm.c_stride,
          finishes ? kPanel : gemm.c_panel_stride);
      return;
    }
    if (reads)
      for (Int r = 0; r < rows; ++r)
        for (Int n = 0; n < columns; ++n)
          buffer[r * kTileColumns + n] =
              c[r * gemm.c_stride + n / kPanel * gemm.c_panel_stride + n % kPanel];
    set(call.from, reads ? buffer : nullptr, kTileColumns, kPanel);
    set(call.to, buffer, kTileColumns, kPanel);
  }

  // The sum of squares of a tile as stored in C: in one order, whichever block holds it.
  static double sum_squares(const Floats& tile, Int rows, Int columns) {
    SquareSums sums;
    for (Int j = 0; j < columns; j += kPanel)
      for (Int r = 0; r < rows; ++r)
        sums.add(tile.data + r * tile.stride + j / kPanel * tile.panel_stride, columns - j);
    return sums.total();
  }
  static double& squares_of(const Gemm& gemm, Int i, Int j) {
    return gemm.squares[i / kRows * ceil_div(gemm.columns, kTileColumns) + j / kTileColumns];
  }

  static void copy_a(const Step& step, Unit* to) {
    const Matrix& a = step.gemm.a;
    if constexpr (kHasTiles) {
      if (is_gradient(step.gemm))
        return Isa::copy_columns(to, A::kRowStride, a, step.row_begin,
                                 step.row_end - step.row_begin, step.k0, step.depth);
    }
    if constexpr (__is_same(Unit, float)) {
      if (a.dtype == DType::kFloat32) return copy_as<float>(step, to);
      if (a.dtype == DType::kFloat16) return copy_as<Float16>(step, to);
    }
    copy_as<std::uint16_t>(step, to);
  }
  template <class T>
  static void copy_as(const Step& step, Unit* to) {
    const Int i = step.row_begin, rows = step.row_end - i;
    if (is_gradient(step.gemm) && !kHasTiles)
      A::template interleaved<T>(to, step.gemm.a, i, rows, step.k0, step.depth);
    else
      A::template by_rows<T>(to, step.gemm.a, i, rows, step.k0, step.depth);
  }

  // The units of A in place, if they are stored as copy_a would copy them; else null.
  static const Unit* a_in_place(const Step& step) {
    const Matrix& a = step.gemm.a;
    constexpr DType kOperand = __is_same(Unit, float) ? DType::kFloat32 : DType::kBFloat16;
    if (is_gradient(step.gemm) || a.index.data != nullptr || has_prologue(a) ||
        a.dtype != kOperand || a.row_stride != A::kRowStride * A::kUnitDepth || step.depth % 2 != 0)
      return nullptr;
    return reinterpret_cast<const Unit*>(a.data) + step.row_begin * A::kRowStride +
           step.k0 / A::kUnitDepth;
  }

  // Multiplies the units of A with every panel of the block; its rows are split as evenly as
  // possible.
  template <bool kGradient>
  static void multiply(const Step& step, const Unit* a, const std::byte* panels, Int panel_bytes) {
    const Block& block = step.block;
    const Int rows = step.row_end - step.row_begin;
    const Int tiles = ceil_div(rows, kRows);
    constexpr bool kInterleaved = kGradient && !kHasTiles;
    [[maybe_unused]] const Int a_units = A::units_of(step.depth);
    const Int sum_units = sum_terms(step.gemm) / unit_depth(step.gemm.b);
    // B's lanes beyond its last column are zero, and so become those of C's panels.
    const Int column_end =
        step.gemm.c_in_panels ? round_up(block.column_end, kPanel) : block.column_end;
    alignas(64) float sums[kRows * kTileColumns];
    [[maybe_unused]] typename TilesOf<Isa>::type registers;
    for (Int j = block.column_begin; j < column_end; j += kTileColumns) {
      const Int columns = smaller(kTileColumns, column_end - j);
      const std::byte* b = panels + (j - block.column_begin) / kPanel * panel_bytes;
      const Int vectors = ceil_div(columns, kLanes);
      const bool has_next = j + kTileColumns < block.column_end;
      const Int ahead_step = has_next ? ceil_div(kPanel * unit_bytes(step.gemm.b), tiles) : 0;
      const std::byte* ahead = has_next ? b + kTilePanels * panel_bytes : b;
      Int i = 0;
      for (Int t = 0; t < tiles; ++t) {
        const Int count =
            kGradient ? smaller(kRows, rows - i) : rows / tiles + (t < rows % tiles ? 1 : 0);
        const Int next = i + count;
        const bool reads_next = next < rows && continues(step);
        if (step.last && next < rows && !reads_next && !streams(step))
          prefetch(step, step.row_begin + next, j);
        const bool is_whole = columns % kPanel == 0 && (!kInterleaved || count == kRows);
        TileCall call;
        call.units = step.units;
        call.sum_units = sum_units;
        call.a = kInterleaved ? a + t * A::tile_stride(a_units) : a + i * A::kRowStride;
        call.b = b;
        call.panel_bytes = panel_bytes;
        call.ahead = ahead + t * ahead_step * step.units;
        call.ahead_step = ahead_step;
        set(call.next, reads_next ? sums_in_c(step.gemm, step.row_begin + next, j) : nullptr,
            step.gemm.c_stride, step.gemm.c_panel_stride);
        place_sums(step, step.row_begin + i, j, is_whole, count, columns, sums, call);
        if constexpr (kHasTiles)
          registers.multiply(call, count, vectors);
        else
          tile_of<kInterleaved>(step.gemm.b, count, vectors)(call);
        if (step.last && step.gemm.squares != nullptr)
          squares_of(step.gemm, step.row_begin + i, j) = sum_squares(call.to, count, columns);
        if (call.to.data == sums) finish(step, step.row_begin + i, j, count, columns, sums);
        i += count;
      }
    }
    if constexpr (kHasTiles) registers.release();
  }

  static void compute(const Gemm& gemm, const Block& block, std::byte* base) {
    const Workspace space = workspace(gemm, base);
    add_product(gemm, block, space, true, gemm.num_further == 0);
    Gemm next = gemm;
    for (Int p = 0; p < gemm.num_further; ++p) {
      next.a = gemm.further[p].a;
      next.b = gemm.further[p].b;
      next.depth = gemm.further[p].depth;
      add_product(next, block, space, false, p + 1 == gemm.num_further);
    }
    if (gemm.streams) Isa::end_stream();  // before another thread may read
  }

  // A · B alone, as the first or the last product of the sums.
  static void add_product(const Gemm& gemm, const Block& block, const Workspace& space,
                          bool is_first, bool is_last) {
    const Int depth_of_b = unit_depth(gemm.b), bytes_of_b = unit_bytes(gemm.b);
    const Int longest = packed_depth(gemm);
    const Int most_rows = part_rows(gemm);
    const bool repeats_a = gemm.repeats_a && block.row_end - block.row_begin <= most_rows;
    Int k0 = 0;
    do {
      const Int depth = smaller(longest, gemm.depth - k0);
      const Int units = ceil_div(depth, depth_of_b);
      const std::byte* panels = space.b;
      Int panel_bytes = units * kPanel * 4;
      if (gemm.b.is_packed) {
        panel_bytes = ceil_div(gemm.depth, depth_of_b) * kPanel * bytes_of_b;
        panels = gemm.b.data + block.column_begin / kPanel * panel_bytes +
                 k0 / depth_of_b * kPanel * bytes_of_b;
      } else {
        PackB<Isa>::run(space.b, gemm.b, block.column_begin, block.column_end - block.column_begin,
                        k0, depth);
      }
      for (Int row = block.row_begin; row < block.row_end; row += most_rows) {
        const Step step{.gemm = gemm,
                        .block = block,
                        .k0 = k0,
                        .depth = depth,
                        .units = units,
                        .first = is_first && k0 == 0,
                        .last = is_last && k0 + depth >= gemm.depth,
                        .row_begin = row,
                        .row_end = smaller(block.row_end, row + most_rows),
                        .partial = space.partial};
        const Unit* a = a_in_place(step);
        if (a == nullptr) {
          if (!repeats_a || !step.first || !step.last) copy_a(step, space.a);
          a = space.a;
        }
        if (is_gradient(gemm))
          multiply<true>(step, a, panels, panel_bytes);
        else
          multiply<false>(step, a, panels, panel_bytes);
      }
      k0 += depth;
    } while (k0 < gemm.depth);
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu
