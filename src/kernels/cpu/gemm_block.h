// SPDX-License-Identifier: Apache-2.0
// The one implementation of GemmEngine::compute, over a small set of vector operations (`Isa`). It
// is compiled once an instruction set, so everything here has internal linkage and calls no inline
// function of the standard library: the linker must never pick an AVX-512 copy for the whole
// program.
//
// B is packed into panels of kLanes columns, [unit][kLanes], where a unit is one f32 or a pair of
// bf16 along the depth. A is read in place when it is contiguous along the depth and of the unit's
// type, else copied: row by row, or as [unit][rows] when it is contiguous along the rows.
#pragma once
#include <utility>

#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

template <class T>
constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}
constexpr Int round_up(Int value, Int step) { return (value + step - 1) / step * step; }

inline float widen(std::uint16_t bits) {
  return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
}

inline std::uint16_t narrow(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

inline float as_float(float value) { return value; }
inline float as_float(std::uint16_t value) { return widen(value); }

// How elements become units of the packed panels.
template <class Unit>
struct Units;

template <>
struct Units<float> {
  static constexpr Int kDepth = 1;
  template <class T>
  static float make(const T* first, Int) {
    return as_float(*first);
  }
};

template <>
struct Units<std::uint32_t> {
  static constexpr Int kDepth = 2;
  static std::uint32_t make(const std::uint16_t* first, const std::uint16_t* second) {
    return std::uint32_t{*first} | (second != nullptr ? std::uint32_t{*second} << 16 : 0u);
  }
};

// How compute() walks the depth and reads A.
struct AView {
  const void* units = nullptr;
  Int row_stride = 0, unit_stride = 0;
};

template <class Isa>
struct GemmBlock {
  using Unit = typename Isa::Unit;
  using Vector = typename Isa::Vector;
  static constexpr Int kLanes = Isa::kLanes, kRows = Isa::kRows, kVectors = Isa::kVectors;
  static constexpr Int kTileColumns = kLanes * kVectors;
  static constexpr Int kUnitDepth = Units<Unit>::kDepth;
  static constexpr Int kPackBytes = Isa::kPackBytes, kStrip = 4 * kLanes;
  static constexpr Int kMaxColumns = 512 / kTileColumns * kTileColumns;

  using Tile = void (*)(Int, const Unit*, Int, Int, const Unit*, Int, float*);

  // acc[kRows, kTileColumns] of one register tile, written to `out`. b_stride: between panels.
  template <int R, int V>
  static __attribute__((noinline)) void tile(Int num_units, const Unit* a, Int a_row, Int a_unit,
                                             const Unit* b, Int b_stride, float* out) {
    Vector sum[R][V];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[i][v] = Isa::zero();
    for (Int k = 0; k < num_units; ++k) {
      typename Isa::Packed right[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) right[v] = Isa::load(b + v * b_stride);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const typename Isa::Packed left = Isa::broadcast(a + i * a_row);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[i][v] = Isa::multiply_add(sum[i][v], left, right[v]);
      }
      a += a_unit;
      b += kLanes;
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) Isa::store(out + i * kTileColumns + v * kLanes, sum[i][v]);
  }

  template <int V, int... R>
  static Tile tile_of(Int rows, std::integer_sequence<int, R...>) {
    static constexpr Tile kTiles[] = {&tile<R + 1, V>...};
    return kTiles[rows - 1];
  }
  static Tile tile_of(Int rows, Int vectors) {
    constexpr auto kAllRows = std::make_integer_sequence<int, static_cast<int>(kRows)>{};
    if constexpr (kVectors >= 3)
      if (vectors == 3) return tile_of<3>(rows, kAllRows);
    return vectors == 1 ? tile_of<1>(rows, kAllRows) : tile_of<2>(rows, kAllRows);
  }

  static bool packs_rows(const Gemm& gemm) { return gemm.a.column_stride != 1; }

  static Blocking blocking(const Gemm& gemm) {
    const Int longest = packs_rows(gemm) ? 256 * kUnitDepth : 1024 * kUnitDepth;
    const Int depth = gemm.depth <= longest ? gemm.depth : packs_rows(gemm) ? longest : longest / 2;
    const Int units = round_up(depth > 0 ? depth : 1, kUnitDepth) / kUnitDepth;
    const Int fitting = kPackBytes / (units * 4) / kTileColumns * kTileColumns;
    const Int columns = smaller<Int>(kMaxColumns, fitting > 0 ? fitting : kTileColumns);
    return {.rows = (packs_rows(gemm) ? 128 : 256) / kRows * kRows,
            .columns = columns,
            .depth = depth > 0 ? round_up(depth, kUnitDepth) : kUnitDepth};
  }

  struct Workspace {
    Unit *a, *b;
    float* partial;
    Int bytes;
  };
  // A null base only counts.
  static Workspace workspace(const Gemm& gemm, std::byte* base) {
    const Blocking most = blocking(gemm);
    const Int units = most.depth / kUnitDepth;
    // Bounds the panels and grows with the depth: a product of a group fits where the largest does.
    const Int packed = smaller<Int>(kPackBytes, kMaxColumns * units * 4);
    const Int narrowest = kTileColumns * units * 4;
    const Int b_bytes = round_up(packed > narrowest ? packed : narrowest, 64);
    const Int a_bytes = round_up((packs_rows(gemm) ? most.rows : kRows) * units * 4, 64);
    const bool has_partial = gemm.c_dtype != DType::kFloat32 && gemm.depth > most.depth;
    const Int partial_bytes = has_partial ? round_up(most.rows * most.columns * 4, 64) : 0;
    const Int bytes = b_bytes + a_bytes + partial_bytes;
    if (base == nullptr) return {.a = nullptr, .b = nullptr, .partial = nullptr, .bytes = bytes};
    return {.a = reinterpret_cast<Unit*>(base + b_bytes),
            .b = reinterpret_cast<Unit*>(base),
            .partial = reinterpret_cast<float*>(base + b_bytes + a_bytes),
            .bytes = bytes};
  }
  static Int workspace_bytes(const Gemm& gemm) { return workspace(gemm, nullptr).bytes; }

  // One unit of the depth of `matrix` at (i, k), k counted along `step`; zero beyond `depth`.
  template <class T>
  static Unit unit_at(const T* element, Int step, Int left) {
    if constexpr (kUnitDepth == 1) {
      return Units<Unit>::make(element, step);
    } else {
      return Units<Unit>::make(element, left > 1 ? element + step : nullptr);
    }
  }

  // B[k0 + ., j0 + .] into panels. T: element type.
  template <class T>
  static void pack_b(Unit* panels, const Gemm& gemm, Int j0, Int columns, Int k0, Int depth) {
    const T* source = reinterpret_cast<const T*>(gemm.b.data) + k0 * gemm.b.row_stride +
                      j0 * gemm.b.column_stride;
    const Int units = round_up(depth, kUnitDepth) / kUnitDepth;
    if (gemm.b.column_stride == 1) {
      for (Int j = 0; j < columns; j += kStrip)
        pack_rows_of_b(panels + j * units, source + j, gemm.b.row_stride,
                       smaller(kStrip, columns - j), depth);
      return;
    }
    for (Int j = 0; j < columns; j += kLanes)
      pack_columns_of_b(panels + j * units, source + j * gemm.b.column_stride, gemm.b.column_stride,
                        smaller(kLanes, columns - j), depth);
  }

  // The columns are contiguous: few panels at a time, so that whole cache lines are read and the
  // writes stay a few sequential streams.
  template <class T>
  static void pack_rows_of_b(Unit* panels, const T* source, Int stride, Int columns, Int depth) {
    const Int units = round_up(depth, kUnitDepth) / kUnitDepth;
    for (Int u = 0; u < units; ++u, source += kUnitDepth * stride) {
      const Int left = depth - u * kUnitDepth;
      Unit* row = panels + u * kLanes;
      Int j = 0;
      if (left >= kUnitDepth)
        for (; j + kLanes <= columns; j += kLanes)
          for (Int lane = 0; lane < kLanes; ++lane)
            row[j * units + lane] = unit_at(source + j + lane, stride, kUnitDepth);
      for (; j < columns; j += kLanes)
        for (Int lane = 0; lane < kLanes; ++lane)
          row[j * units + lane] =
              j + lane < columns ? unit_at(source + j + lane, stride, left) : Unit{};
    }
  }

  // The depth is contiguous: squares of kLanes x kLanes units are transposed in registers.
  template <class T>
  static void pack_columns_of_b(Unit* panel, const T* source, Int stride, Int width, Int depth) {
    constexpr Int kSquare = kLanes * kUnitDepth;
    Int k = 0;
    if (width == kLanes)
      for (; k + kSquare <= depth; k += kSquare)
        Isa::transpose(panel + k / kUnitDepth * kLanes, source + k, stride);
    for (; k < depth; k += kUnitDepth) {
      Unit* row = panel + k / kUnitDepth * kLanes;
      for (Int j = 0; j < kLanes; ++j)
        row[j] = j < width ? unit_at(source + j * stride + k, 1, depth - k) : Unit{};
    }
  }

  // A's rows [i0, i0 + rows), contiguous along the rows, as [tile][unit][kRows].
  template <class T>
  static void pack_rows_of_a(Unit* packed, const Gemm& gemm, Int i0, Int rows, Int k0, Int depth) {
    const T* source = reinterpret_cast<const T*>(gemm.a.data) + i0 + k0 * gemm.a.column_stride;
    const Int stride = gemm.a.column_stride;
    for (Int i = 0; i < rows; i += kRows) {
      const Int count = smaller(kRows, rows - i);
      for (Int k = 0; k < depth; k += kUnitDepth, packed += kRows) {
        const T* from = source + i + k * stride;
        if (count == kRows && depth - k >= kUnitDepth) {
          for (Int r = 0; r < kRows; ++r) packed[r] = unit_at(from + r, stride, kUnitDepth);
        } else {
          for (Int r = 0; r < count; ++r) packed[r] = unit_at(from + r, stride, depth - k);
        }
      }
    }
  }

  // Few rows of A, contiguous along the depth, converted as [row][unit].
  template <class T>
  static AView copy_rows_of_a(Unit* copy, const Gemm& gemm, Int i0, Int rows, Int k0, Int depth) {
    const Int units = round_up(depth, kUnitDepth) / kUnitDepth;
    for (Int i = 0; i < rows; ++i) {
      const T* from = reinterpret_cast<const T*>(gemm.a.data) + (i0 + i) * gemm.a.row_stride + k0;
      Unit* to = copy + i * units;
      const Int whole = depth / kUnitDepth;
      for (Int k = 0; k < whole; ++k) to[k] = unit_at(from + k * kUnitDepth, 1, kUnitDepth);
      if (whole < units) to[whole] = unit_at(from + whole * kUnitDepth, 1, 1);
    }
    return {.units = copy, .row_stride = units, .unit_stride = 1};
  }

  static bool in_place(const Gemm& gemm) {
    if (packs_rows(gemm)) return false;
    if (kUnitDepth == 1) return gemm.a.dtype == DType::kFloat32;
    return gemm.a.row_stride % 2 == 0 && gemm.depth % 2 == 0;
  }

  struct Step {
    const Gemm& gemm;
    const Block& block;
    Int k0, depth;
    bool first, last;
    float* partial;  // [block rows, stride]; null: C itself holds partial sums
    Int partial_stride;
  };

  // C is on its way while the tile is computed.
  static void prefetch(const Step& step, Int i, Int j, Int rows) {
    const Int size = step.gemm.c_dtype == DType::kFloat32 ? 4 : 2;
    for (Int r = 0; r < rows; ++r) {
      const std::byte* row = step.gemm.c + ((i + r) * step.gemm.c_stride + j) * size;
      for (Int c = 0; c < kTileColumns * size; c += 64) __builtin_prefetch(row + c, 1);
    }
  }

  // Adds a register tile to what earlier depths left, and writes it where it belongs.
  static void finish(const Step& step, Int i, Int j, Int rows, Int columns, float* tile_sums) {
    const Gemm& gemm = step.gemm;
    const bool to_c = step.last || step.partial == nullptr;
    const bool adds = !step.first || (gemm.accumulate && step.partial == nullptr);
    for (Int r = 0; r < rows; ++r) {
      float* sums = tile_sums + r * kTileColumns;
      float* partial = step.partial != nullptr
                           ? step.partial + (i + r - step.block.row_begin) * step.partial_stride +
                                 (j - step.block.column_begin)
                           : reinterpret_cast<float*>(gemm.c) + (i + r) * gemm.c_stride + j;
      if (adds)
        for (Int c = 0; c < columns; ++c) sums[c] = partial[c] + sums[c];
      if (step.last && gemm.bias != nullptr)
        for (Int c = 0; c < columns; ++c) sums[c] += gemm.bias[j + c];
      if (to_c && gemm.c_dtype == DType::kBFloat16) {
        auto* out = reinterpret_cast<std::uint16_t*>(gemm.c) + (i + r) * gemm.c_stride + j;
        for (Int c = 0; c < columns; ++c) out[c] = narrow(sums[c]);
      } else {
        for (Int c = 0; c < columns; ++c) partial[c] = sums[c];
      }
    }
  }

  static AView view_of_a(const Step& step, Unit* space, Int i, Int rows) {
    const Gemm& gemm = step.gemm;
    if (in_place(gemm)) {
      const std::byte* at =
          gemm.a.data + (i * gemm.a.row_stride + step.k0) * (kUnitDepth == 1 ? 4 : 2);
      return {.units = at, .row_stride = gemm.a.row_stride / kUnitDepth, .unit_stride = 1};
    }
    if constexpr (kUnitDepth == 1)
      if (gemm.a.dtype == DType::kFloat32)
        return copy_rows_of_a<float>(space, gemm, i, rows, step.k0, step.depth);
    return copy_rows_of_a<std::uint16_t>(space, gemm, i, rows, step.k0, step.depth);
  }

  static void multiply(const Step& step, const Workspace& space) {
    const Block& block = step.block;
    const Int units = round_up(step.depth, kUnitDepth) / kUnitDepth;
    const Int columns = block.column_end - block.column_begin;
    const Int panels = (columns + kLanes - 1) / kLanes;
    const Int tiles = (panels + kVectors - 1) / kVectors;
    if (packs_rows(step.gemm)) {
      const Int rows = block.row_end - block.row_begin;
      if (kUnitDepth == 1 && step.gemm.a.dtype == DType::kFloat32) {
        if constexpr (kUnitDepth == 1)
          pack_rows_of_a<float>(space.a, step.gemm, block.row_begin, rows, step.k0, step.depth);
      } else {
        pack_rows_of_a<std::uint16_t>(space.a, step.gemm, block.row_begin, rows, step.k0,
                                      step.depth);
      }
    }
    alignas(64) float sums[kRows * kTileColumns];
    for (Int i = block.row_begin; i < block.row_end; i += kRows) {
      const Int rows = smaller(kRows, block.row_end - i);
      const AView a = packs_rows(step.gemm)
                          ? AView{.units = space.a + (i - block.row_begin) * units,
                                  .row_stride = 1,
                                  .unit_stride = kRows}
                          : view_of_a(step, space.a, i, rows);
      Int panel = 0;
      for (Int t = 0; t < tiles; ++t) {  // as even as can be, at most kVectors wide
        const Int vectors = panels / tiles + (t < panels % tiles ? 1 : 0);
        const Int j = block.column_begin + panel * kLanes;
        prefetch(step, i, j, rows);
        tile_of(rows, vectors)(units, static_cast<const Unit*>(a.units), a.row_stride,
                               a.unit_stride, space.b + panel * units * kLanes, units * kLanes,
                               sums);
        finish(step, i, j, rows, smaller(vectors * kLanes, block.column_end - j), sums);
        panel += vectors;
      }
    }
  }

  static void compute(const Gemm& gemm, const Block& block, std::byte* base) {
    const Workspace space = workspace(gemm, base);
    const Blocking most = blocking(gemm);
    const bool has_partial = gemm.c_dtype != DType::kFloat32 && gemm.depth > most.depth;
    Int k0 = 0;
    do {
      const Int depth = smaller(most.depth, gemm.depth - k0);
      const Step step{.gemm = gemm,
                      .block = block,
                      .k0 = k0,
                      .depth = depth,
                      .first = k0 == 0,
                      .last = k0 + depth >= gemm.depth,
                      .partial = has_partial ? space.partial : nullptr,
                      .partial_stride = most.columns};
      bool is_packed = false;
      if constexpr (kUnitDepth == 1) {
        if (gemm.b.dtype == DType::kFloat32) {
          pack_b<float>(space.b, gemm, block.column_begin, block.column_end - block.column_begin,
                        k0, depth);
          is_packed = true;
        }
      }
      if (!is_packed)
        pack_b<std::uint16_t>(space.b, gemm, block.column_begin,
                              block.column_end - block.column_begin, k0, depth);
      multiply(step, space);
      k0 += depth;
    } while (k0 < gemm.depth);
  }
};

}  // namespace
}  // namespace anabatic::kernels::cpu
