// SPDX-License-Identifier: Apache-2.0
// Products with weights of which two of four are present (spec/sparse_layout.h), over the vector
// operations of a GEMM engine (`Isa`). Compiled once an instruction set: see gemm_pack.h for what
// that forbids.
//
// A vector has the lines of a panel side by side. For each group of four of the depth a row's four
// elements are broadcast, and a shuffle picks for each line the ones that its weights meet. So a
// group takes half of a dense product's multiplications, and as many shuffles. Where an engine
// multiplies pairs, a line's two weights are one, and else there are two steps a group.
//
// Two bits a weight are expanded to the shuffles' controls once for many rows.
//
// Terms of an element are added in the order of the dense product, of which the others are zero:
// ascending, but the odd one of a pair first where pairs are multiplied (VDPBF16PS).
#pragma once
#include "kernels/cpu/sparse/block_tiles.h"

namespace anabatic::kernels::cpu {
namespace {

template <class Isa>
struct TwoOfFourTiles {
  using Unit = typename Isa::Unit;
  using Vector = typename Isa::Vector;
  using Control = typename Isa::Control;
  using Rows = BlockTiles<Isa, 16>;  // how rows of A and of C lie
  static constexpr bool kMultipliesPairs = Rows::kMultipliesPairs;
  static constexpr Int kGroupUnits = 4 / Rows::kUnitDepth;
  static constexpr int kSteps = kMultipliesPairs ? 1 : 2;  // of a group
  static constexpr int kPanelVectors = 16 / static_cast<int>(Isa::kLanes);
  static constexpr bool kIsWide = Isa::kLanes == 16;
  static constexpr int kMostPanels = kIsWide ? 2 : 1;  // of a tile
  static constexpr int kRows = kIsWide ? 12 : kPanelVectors == 2 ? 4 : 2;
  // Words of a step of a panel: controls, then weights as units.
  static constexpr Int kStepWords = 32;

  static Int groups(const BlockProduct& p) { return p.depth / 4; }
  static Int panel_words(const BlockProduct& p) { return groups(p) * kSteps * kStepWords; }
  static Int workspace_bytes(const BlockProduct& p) {
    return Rows::workspace_bytes(p) + kMostPanels * panel_words(p) * 4;
  }

  struct Tile {
    const Unit* a;
    Int a_stride;
    const std::uint32_t* b;  // of the tile's first panel
    Int panel_words, groups, sum_groups;
    float* to;  // [kRows][panels · 16]
  };

  // R rows by P panels.
  template <int R, int P>
  static __attribute__((noinline)) void tile(const Tile& in) {
    constexpr int kVectors = P * kPanelVectors, kFours = (R + 3) / 4;
    Vector sum[R][kVectors];
    const std::uint32_t* b = in.b;
    float* const to = in.to;
    // As in block_tiles.h.
    Int one = in.a_stride, two = 2 * one, three = 3 * one;
    const Int four = 4 * one;
    asm("" : "+r"(one), "+r"(two), "+r"(three));
    const Unit* fours[kFours];
#pragma GCC unroll 3
    for (int f = 0; f < kFours; ++f) {
      fours[f] = in.a + f * four;
      asm("" : "+r"(fours[f]));
    }
    bool is_first = true;
    Int left = in.groups;
    do {
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = Isa::zero();
      const Int count = smaller(left, in.sum_groups);
      left -= count;
      for (Int g = count; g > 0; --g) {
#pragma GCC unroll 2
        for (int s = 0; s < kSteps; ++s, b += kStepWords) {
          Control control[kVectors];
          typename Isa::Packed right[kVectors];
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            const std::uint32_t* from =
                b + v / kPanelVectors * in.panel_words + v % kPanelVectors * Isa::kLanes;
            control[v] = Isa::load_control(from);
            right[v] = Isa::load(reinterpret_cast<const Unit*>(from + 16));
          }
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i) {
            const Unit* const row = fours[i / 4];
            const typename Isa::Packed left_four = Isa::broadcast_four(i % 4 == 0   ? row
                                                                       : i % 4 == 1 ? row + one
                                                                       : i % 4 == 2 ? row + two
                                                                                    : row + three);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
              sum[i][v] = Isa::multiply_add(sum[i][v], Isa::pick(left_four, control[v]), right[v]);
          }
        }
#pragma GCC unroll 3
        for (int f = 0; f < kFours; ++f) fours[f] += kGroupUnits;
      }
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          float* at = to + i * P * 16 + v * Isa::kLanes;
          Isa::store_sums(at, is_first ? sum[i][v] : Isa::load_sums(at) + sum[i][v]);
        }
      is_first = false;
    } while (left > 0);
  }

  template <int P>
  static Int multiply_rows(const Tile& in, Int left) {
    if (left >= kRows) return tile<kRows, P>(in), kRows;
    if constexpr (kRows > 8)
      if (left >= 8) return tile<8, P>(in), 8;
    if constexpr (kRows > 4)
      if (left >= 4) return tile<4, P>(in), 4;
    if constexpr (kRows > 2)
      if (left >= 2) return tile<2, P>(in), 2;
    return tile<1, P>(in), 1;
  }

  // One panel of weights as steps. BUnit: float, or std::uint32_t for pairs.
  template <class BUnit>
  static void expand(const BlockProduct& p, Int panel, std::uint32_t* to) {
    const Int count = groups(p);
    const std::uint8_t* places = p.places + panel * ceil_div(p.depth, 8) * 16;
    const auto* values = reinterpret_cast<const BUnit*>(p.values) +
                         panel * count * (__is_same(BUnit, float) ? 32 : 16);
    for (Int g = 0; g < count; ++g, places += g % 2 == 0 ? 16 : 0) {
      const int shift = g % 2 * 4;
      if constexpr (kMultipliesPairs) {
        Isa::controls_of_pairs(to, places, shift);
        __builtin_memcpy(to + 16, values, 64);
        values += 16;
        to += kStepWords;
      } else if constexpr (__is_same(BUnit, float)) {
        for (int s = 0; s < 2; ++s, to += kStepWords, values += 16) {
          for (Int n = 0; n < 16; ++n) to[n] = places[n] >> (shift + 2 * s) & 3;
          __builtin_memcpy(to + 16, values, 64);
        }
      } else {
        for (Int n = 0; n < 16; ++n) {
          const std::uint32_t first = places[n] >> shift & 3, second = places[n] >> (shift + 2) & 3;
          const std::uint32_t low = values[n] << 16, high = values[n] & 0xFFFF0000u;
          const bool is_turned = (first ^ second) > 1;  // spec::is_pair_turned
          to[n] = first;
          to[16 + n] = is_turned ? high : low;
          to[32 + n] = second;
          to[48 + n] = is_turned ? low : high;
        }
        values += 16;
        to += 2 * kStepWords;
      }
    }
  }
  static void expand_panel(const BlockProduct& p, Int panel, std::uint32_t* to) {
    if constexpr (!kMultipliesPairs)
      if (p.dtype == DType::kFloat32) return expand<float>(p, panel, to);
    expand<std::uint32_t>(p, panel, to);
  }

  template <int P>
  static void multiply_panels(const BlockProduct& p, const Unit* a, Int stride, Int row_begin,
                              Int row_end, Int panel, const std::uint32_t* b) {
    constexpr Int kColumns = P * 16;
    alignas(64) float sums[kRows * kColumns];
    Tile call;
    call.a = a;
    call.a_stride = stride;
    call.b = b;
    call.panel_words = panel_words(p);
    call.groups = groups(p);
    call.sum_groups = p.sum_terms / 4;
    call.to = sums;
    const Int line = panel * 16, columns = smaller<Int>(kColumns, p.lines - line);
    for (Int row = row_begin; row < row_end;) {
      const Int count = multiply_rows<P>(call, row_end - row);
      for (Int i = 0; i < count; ++i)
        Rows::finish_row(p, row + i, line, columns, sums + i * kColumns);
      row += count;
      call.a += count * stride;
    }
  }

  static void multiply(const BlockProduct& p, Int row_begin, Int row_end, Int panel_begin,
                       Int panel_end, std::byte* workspace) {
    Int stride = 0;
    const Unit* const a = Rows::rows_of(p, row_begin, row_end, workspace, &stride);
    auto* const b = reinterpret_cast<std::uint32_t*>(workspace + Rows::workspace_bytes(p));
    for (Int panel = panel_begin; panel < panel_end; panel += kMostPanels) {
      const Int count = smaller<Int>(kMostPanels, panel_end - panel);
      for (Int n = 0; n < count; ++n) expand_panel(p, panel + n, b + n * panel_words(p));
      if (kMostPanels > 1 && count > 1)
        multiply_panels<kMostPanels>(p, a, stride, row_begin, row_end, panel, b);
      else
        multiply_panels<1>(p, a, stride, row_begin, row_end, panel, b);
    }
  }
};

// By the pattern, and the side of the blocks.
template <class Isa>
struct BlockSides {
  using Of16 = BlockTiles<Isa, 16>;
  using Of32 = BlockTiles<Isa, 32>;
  using OfFours = TwoOfFourTiles<Isa>;

  static constexpr BlockEngine kEngine{
      .unit_depth = Of32::kUnitDepth,
      .most_rows = Of32::kMostRows,
      .row_step = [](Int side) -> Int { return side == 16 ? Of16::kRows : Of32::kRows; },
      .workspace_bytes = [](const BlockProduct& p) -> Int {
        if (p.is_two_of_four) return OfFours::workspace_bytes(p);
        return p.side == 16 ? Of16::workspace_bytes(p) : Of32::workspace_bytes(p);
      },
      .multiply =
          [](const BlockProduct& p, Int row_begin, Int row_end, Int panel_begin, Int panel_end,
             std::byte* workspace) {
            (p.is_two_of_four ? OfFours::multiply
             : p.side == 16
                 ? Of16::multiply
                 : Of32::multiply)(p, row_begin, row_end, panel_begin, panel_end, workspace);
          },
      .pack =
          [](const BlockGradient& g, Int unit_begin, Int unit_end) {
            (g.side == 16 ? Of16::pack : Of32::pack)(g, unit_begin, unit_end);
          },
      .gradient =
          [](const BlockGradient& g, Int panel_begin, Int panel_end, std::byte* workspace) {
            (g.side == 16 ? Of16::gradient : Of32::gradient)(g, panel_begin, panel_end, workspace);
          }};
};

}  // namespace
}  // namespace anabatic::kernels::cpu
