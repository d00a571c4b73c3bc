// SPDX-License-Identifier: Apache-2.0
// The one implementation of GemmEngine::compute for int8 products, over a tile of an instruction
// set (`Isa`). Compiled once an instruction set: see gemm_pack.h for what that forbids.
//
// Outside in: strips of columns, whose panels stay in the caches; blocks of the depth, between
// which sums wait in the workspace; tiles of rows, which stream by. While the tiles of a strip are
// computed, the next strip is fetched. Strips and tiles are those of all instruction sets, so that
// sums of squares have equal bits too; those of an instruction set are parts of a tile.
#pragma once
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/int8/coding.h"
#include "kernels/cpu/int8/second_sums.h"
#include "kernels/cpu/square_sums.h"

namespace anabatic::kernels::cpu {
namespace {

inline constexpr Int kBlockUnits = kInt8Block / kInt8Unit;
// 1 / 254 in f32: what a second code counts.
inline constexpr float kSecondScale = 1.0f / 254.0f;
// Sizes of a tile.
inline constexpr Int kInt8Rows = 4, kInt8Panels = 3, kInt8Columns = kInt8Panels * kInt8Panel;

// What some rows by some panels of a tile read and write. Strides count elements.
struct Int8Tile {
  Int units;  // of the depth
  const std::int8_t* a;
  bool a_is_unsigned;
  Int a_row, a_unit;  // from row to row, and from unit to unit
  Int a_panel;        // from panel to panel, where rows lie in panels
  const BFloat16* a_scales;
  Int a_scale_row, a_scale_block;
  const std::int8_t* a_second;        // as a, or null
  const std::uint16_t* a_falls_back;  // a row's flag is bit a_lane + row · a_lane_row
  Int a_flag_row, a_lane, a_lane_row;
  Int a_flag_panel;  // from panel to panel
  const std::int8_t* b;
  Int b_panel;  // from panel to panel
  // Sixteen scales a panel and block, or one for all its columns.
  const BFloat16* b_scales[kInt8Panels];
  Int b_scale_block;
  bool b_has_tiles;
  const std::int32_t* compensation;
  Int compensation_panel;
  const std::int8_t* b_second;  // as b, or null
  const std::int32_t* second_compensation;
  const std::uint16_t* b_falls_back;
  Int b_flag_panel;
  const float* from;                   // where the chains begin; null: at zero
  float* to;                           // or bf16, where the tile rounds
  Int stride, panel_stride;            // of to
  bool rounds;                         // for an Isa that does
  Int from_stride, from_panel_stride;  // of from
  bool streams;
  // Null, or sums of second values by block, for an Isa that makes them ahead, and the place of the
  // tile's first row among their rows.
  const Int8SecondBlock* second;
  Int second_row;
  // Lines of the next strip that are fetched with each block, and their number.
  const std::int8_t* ahead;
  Int ahead_lines;
};
using TileFunction = void (*)(const Int8Tile&);

inline Int units_of_block(Int units, Int block) {
  return smaller(kBlockUnits, units - block * kBlockUnits);
}

// Columns of a panel, a bit each, whose second values row i takes in block k.
inline unsigned falling_columns(const Int8Tile& in, Int k, Int i) {
  if (in.b_second != nullptr) return in.b_falls_back[k];
  if (in.a_second == nullptr) return 0;
  const int lane = static_cast<int>(in.a_lane + i * in.a_lane_row);
  return (in.a_falls_back[i * in.a_flag_row + k] >> lane & 1) != 0 ? 0xFFFFu : 0u;
}

// Isa: kRows and kPanels of its tiles; kRounds: whether they can round to bf16; tile(rows, panels):
// a tile's function; narrow, stream, end_stream. Where it has SecondSums, these make the sums of
// second values before the tiles.
template <class Isa>
struct Int8Compute {
  // Most rows of a block, where they lie in rows and in panels, and its most columns.
  static constexpr Int kMostRows = 256, kMostPanelRows = 64, kMostColumns = 528;
  // The panels of a strip and a block of the depth stay in the first or second cache.
  static constexpr Int kDepth = 2048;
  static constexpr bool kSumsAhead = requires { typename Isa::SecondSums; };
  static_assert(kDepth == kInt8SecondBlocks * kInt8Block);

  static bool accepts(DType a, DType) { return a == DType::kFloat32 || a == DType::kBFloat16; }

  static Blocking blocking(const Gemm& gemm) {
    return {.rows = gemm.b.is_packed ? kMostRows : kMostPanelRows,
            .columns = kMostColumns,
            .row_step = kInt8Rows,
            .column_step = kInt8Columns};
  }

  // A chain goes on, whichever call it began in.
  static Int sum_terms(const Gemm&) { return kInt8Block; }

  // Sums between parts of the depth, those of second values, and rows that have these.
  static Int workspace_bytes(const Gemm& gemm) {
    const Int rows = partial_rows(gemm);
    Int bytes = rows * kRowBytes;
    if constexpr (kSumsAhead) {
      // A caller that bounds several products has the largest depth.
      const Int parts = (1 + gemm.num_further) * num_parts(most_depth(gemm));
      bytes += second_bytes(rows, most_depth(gemm)) +
               parts * num_groups(rows) * Int{sizeof(Int8SecondRows)};
    }
    return bytes;
  }

  // A block of the depth of one of the products.
  struct Step {
    const Gemm& gemm;
    const Block& block;
    float* partial;  // [rows of the block][kInt8Columns]
    bool first, last;
    float* second;               // for the sums of second values
    Int8SecondRows* falls_back;  // of A, of each group of rows
  };

  static void compute(const Gemm& gemm, const Block& block, std::byte* workspace) {
    auto* partial = reinterpret_cast<float*>(workspace);
    const Int rows = partial_rows(gemm);
    auto* second = reinterpret_cast<float*>(workspace + rows * kRowBytes);
    auto* falls_back = reinterpret_cast<Int8SecondRows*>(workspace + rows * kRowBytes +
                                                         second_bytes(rows, most_depth(gemm)));
    // B's lanes beyond its last column are zero, and so become those of C's panels.
    const Int column_end =
        gemm.c_in_panels ? round_up(block.column_end, kInt8Panel) : block.column_end;
    for (Int j = block.column_begin; j < column_end; j += kInt8Columns) {
      const Int columns = smaller(kInt8Columns, column_end - j);
      Int part = 0;
      for (Int p = 0; p <= gemm.num_further; ++p) {
        const Int depth = p == 0 ? gemm.depth : gemm.further[p - 1].depth;
        Int k = 0;
        do {
          const Step step{.gemm = gemm,
                          .block = block,
                          .partial = partial,
                          .first = p == 0 && k == 0,
                          .last = p == gemm.num_further && k + kDepth >= depth,
                          .second = second,
                          .falls_back = falls_back + part++ * num_groups(rows)};
          add_strip(step, p, k, j, columns);
          k += kDepth;
        } while (k < depth);
      }
    }
    if (gemm.streams) Isa::end_stream();  // before another thread may read
  }

 private:
  static constexpr Int kRowBytes = kInt8Columns * Int{sizeof(float)};

  static Int partial_rows(const Gemm& gemm) {
    return round_up(smaller(blocking(gemm).rows, larger(gemm.rows, Int{1})), kInt8Rows);
  }
  static Int most_depth(const Gemm& gemm) {
    Int depth = gemm.depth;
    for (Int p = 0; p < gemm.num_further; ++p) depth = larger(depth, gemm.further[p].depth);
    return depth;
  }
  static Int num_parts(Int depth) { return larger(ceil_div(depth, kDepth), Int{1}); }
  static Int num_groups(Int rows) { return ceil_div(rows, kInt8SecondRows); }
  static Int second_bytes(Int rows, Int depth) {
    return smaller(rows, kInt8SecondRows) * int8_blocks(smaller(depth, kDepth)) * kRowBytes;
  }

  // Columns [j, j + columns) of product p, of the block of the depth that begins at k0.
  static void add_strip(const Step& step, Int p, Int k0, Int j, Int columns) {
    const Gemm& gemm = step.gemm;
    const Block& block = step.block;
    const Matrix& right = p == 0 ? gemm.b : gemm.further[p - 1].b;
    const Int depth = p == 0 ? gemm.depth : gemm.further[p - 1].depth;
    const Int8Operands& operands = gemm.coded[p];
    Int8Tile tile;
    tile.units = int8_units(smaller(kDepth, depth - k0));
    const Int blocks = int8_blocks(smaller(kDepth, depth - k0));
    if (operands.b == nullptr)
      set_weights(right, depth, k0, j, tile);
    else
      set_panels(*operands.b, depth, k0, j, tile);
    const Int tiles = ceil_div(block.row_end - block.row_begin, kInt8Rows);
    const Int panels = ceil_div(columns, kInt8Panel);
    // The panels of the next strip follow those of this one.
    const Int next = smaller(kInt8Columns, block.column_end - j - kInt8Columns);
    const Int lines = next > 0 ? ceil_div(next, kInt8Panel) * tile.units : 0;
    tile.ahead_lines = ceil_div(lines, larger(tiles * blocks, Int{1}));
    const std::int8_t* ahead = tile.b + kInt8Panels * tile.b_panel;
    alignas(64) float sums[kInt8Rows * kInt8Columns];
    [[maybe_unused]] Int8SecondBlock second[kSumsAhead ? kInt8SecondBlocks : 1];
    const bool sums_ahead = kSumsAhead && blocks > 0 &&
                            (operands.a->second_codes != nullptr || tile.b_second != nullptr);
    tile.second = nullptr;
    for (Int i = block.row_begin; i < block.row_end; i += kInt8Rows) {
      const Int rows = smaller(kInt8Rows, block.row_end - i);
      set_rows(*operands.a, depth, k0, i, tile);
      if constexpr (kSumsAhead)
        if (sums_ahead) {
          tile.second_row = (i - block.row_begin) % kInt8SecondRows;
          if (tile.second_row == 0) sum_ahead(step, i, j, panels, tile, second);
        }
      tile.ahead = ahead;
      ahead += tile.ahead_lines * blocks * 64;
      if (step.last && !gemm.streams && i + kInt8Rows < block.row_end)
        prefetch(gemm, i + kInt8Rows, smaller(kInt8Rows, block.row_end - i - kInt8Rows), j,
                 columns);
      place_sums(step, i, j, rows, columns, sums, tile);
      run_tile(tile, rows, panels);
      if (!step.last) continue;
      if (gemm.squares != nullptr)
        gemm.squares[i / kInt8Rows * ceil_div(gemm.columns, kInt8Columns) + j / kInt8Columns] =
            sum_squares(tile, rows, smaller(columns, gemm.columns - j));
      if (tile.to == sums) finish(step.gemm, i, j, rows, columns, sums);
    }
  }

  // Sums of second values for the rows from i on, where the tile is, of the strip at column j.
  static __attribute__((noinline)) void sum_ahead(const Step& step, Int i, Int j, Int panels,
                                                  Int8Tile& tile, Int8SecondBlock* second) {
    const Block& block = step.block;
    const Int rows = smaller(kInt8SecondRows, block.row_end - i);
    Int8SecondRows& falls_back = step.falls_back[(i - block.row_begin) / kInt8SecondRows];
    if (j == block.column_begin) Isa::SecondSums::find_rows(tile, rows, falls_back);
    const bool any = Isa::SecondSums::sum(tile, falls_back, rows, panels, step.second, second);
    tile.second = any ? second : nullptr;
  }

  static void set_weights(const Matrix& b, Int depth, Int k0, Int j, Int8Tile& tile) {
    const Int units = int8_units(depth), blocks = int8_blocks(depth), panel = j / kInt8Panel;
    tile.b_panel = units * kInt8Panel * kInt8Unit;
    tile.b = reinterpret_cast<const std::int8_t*>(b.data) + panel * tile.b_panel + k0 * kInt8Panel;
    tile.compensation_panel = blocks * kInt8Panel;
    const Int block = k0 / kInt8Block;
    tile.compensation = b.compensations + panel * tile.compensation_panel + block * kInt8Panel;
    tile.b_has_tiles = true;
    tile.b_scale_block = b.scale_step;
    const auto* scales = reinterpret_cast<const BFloat16*>(b.scales) + block * b.scale_step;
    for (Int v = 0; v < kInt8Panels; ++v)
      tile.b_scales[v] = scales + (panel + v) * kInt8Panel / kInt8Block * b.scale_stride;
    tile.b_second = nullptr;
  }

  static void set_panels(const Int8Lines& b, Int depth, Int k0, Int j, Int8Tile& tile) {
    const Int units = int8_units(depth), blocks = int8_blocks(depth), panel = j / kInt8Panel;
    tile.b_panel = units * kInt8Panel * kInt8Unit;
    const Int before = panel * tile.b_panel + k0 * kInt8Panel;
    tile.b = b.codes + before;
    tile.compensation_panel = blocks * kInt8Panel;
    const Int block = k0 / kInt8Block, line = panel * tile.compensation_panel + block * kInt8Panel;
    tile.compensation = b.compensation + line;
    tile.b_has_tiles = false;
    tile.b_scale_block = kInt8Panel;
    for (Int v = 0; v < kInt8Panels; ++v)
      tile.b_scales[v] = b.scales + line + v * tile.compensation_panel;
    tile.b_second = nullptr;
    if (b.second_codes == nullptr) return;
    tile.b_second = b.second_codes + before;
    tile.second_compensation = b.second_compensation + line;
    tile.b_falls_back = b.falls_back + panel * blocks + block;
    tile.b_flag_panel = blocks;
  }

  static void set_rows(const Int8Lines& a, Int depth, Int k0, Int i, Int8Tile& tile) {
    const Int block = k0 / kInt8Block;
    Int before;
    tile.a_is_unsigned = a.is_unsigned;
    tile.a_second = nullptr;
    if (a.in_panels) {
      const Int units = int8_units(depth), blocks = int8_blocks(depth);
      const Int panel = i / kInt8Panel, lane = i % kInt8Panel;
      before = panel * units * kInt8Panel * kInt8Unit + k0 * kInt8Panel + lane * kInt8Unit;
      tile.a_row = kInt8Unit;
      tile.a_panel = units * kInt8Panel * kInt8Unit;
      tile.a_unit = kInt8Panel * kInt8Unit;
      tile.a_scales = a.scales + (panel * blocks + block) * kInt8Panel + lane;
      tile.a_scale_row = 1;
      tile.a_scale_block = kInt8Panel;
      tile.a_flag_row = 0;
      tile.a_lane = lane;
      tile.a_lane_row = 1;
      tile.a_flag_panel = blocks;
      if (a.second_codes != nullptr) tile.a_falls_back = a.falls_back + panel * blocks + block;
    } else {
      before = i * a.line_stride + k0;
      tile.a_row = a.line_stride;
      tile.a_panel = 0;
      tile.a_unit = kInt8Unit;
      tile.a_scales = a.scales + i * a.scale_stride + block;
      tile.a_scale_row = a.scale_stride;
      tile.a_scale_block = 1;
      tile.a_flag_row = a.scale_stride;
      tile.a_lane = tile.a_lane_row = 0;
      if (a.second_codes != nullptr) tile.a_falls_back = a.falls_back + i * a.scale_stride + block;
    }
    tile.a = a.codes + before;
    if (a.second_codes != nullptr) tile.a_second = a.second_codes + before;
  }

  // Whether C takes rows of whole panels as they are.
  static bool is_direct(const Gemm& gemm, Int columns) {
    return gemm.c_dtype == DType::kFloat32 && gemm.bias == nullptr && gemm.c_column_step == 1 &&
           columns % kInt8Panel == 0;
  }

  // Whether a tile may write rows of whole panels of it in bf16.
  static bool can_round(const Gemm& gemm, Int columns) {
    return gemm.c_dtype == DType::kBFloat16 && gemm.bias == nullptr && gemm.c_column_step == 1 &&
           columns % kInt8Panel == 0;
  }

  static std::byte* place_in_c(const Gemm& gemm, Int i, Int j) {
    return gemm.c + (i * gemm.c_stride + j / kInt8Panel * gemm.c_panel_stride) *
                        (gemm.c_dtype == DType::kFloat32 ? 4 : 2);
  }

  // The lines of a tile of C, before its turn. Always inline: g++ 12 drops calls of a function that
  // only prefetches.
  static inline __attribute__((always_inline)) void prefetch(const Gemm& gemm, Int i, Int rows,
                                                             Int j, Int columns) {
    const Int size = gemm.c_dtype == DType::kFloat32 ? 4 : 2;
    const bool is_one = gemm.c_panel_stride == kInt8Panel;  // a row of the tile is contiguous
    const Int step = is_one ? columns : kInt8Panel;
    for (Int r = 0; r < rows; ++r)
      for (Int n = 0; n < columns; n += step) {
        const std::byte* c = place_in_c(gemm, i + r, j + n);
        for (Int at = 0; at < step * gemm.c_column_step * size; at += 64)
          __builtin_prefetch(c + at, 1);
        __builtin_prefetch(c + step * gemm.c_column_step * size - 1, 1);
      }
  }

  // Where a tile's chains come from and go to. `buffer` is [kInt8Rows][kInt8Columns].
  static void place_sums(const Step& step, Int i, Int j, Int rows, Int columns, float* buffer,
                         Int8Tile& tile) {
    const Gemm& gemm = step.gemm;
    const bool direct = is_direct(gemm, columns);
    auto* c = reinterpret_cast<float*>(place_in_c(gemm, i, j));
    float* partial = step.partial + (i - step.block.row_begin) * kInt8Columns;
    tile.streams = tile.rounds = false;
    const auto goes_to = [&](float* to, Int stride, Int panel_stride) {
      tile.to = to;
      tile.stride = stride;
      tile.panel_stride = panel_stride;
    };
    if (!step.last) {
      goes_to(partial, kInt8Columns, kInt8Panel);
    } else if (Isa::kRounds && can_round(gemm, columns)) {
      goes_to(c, gemm.c_stride, gemm.c_panel_stride);
      tile.rounds = true;
    } else if (direct && !(gemm.streams && gemm.squares != nullptr)) {
      goes_to(c, gemm.c_stride, gemm.c_panel_stride);
      tile.streams = gemm.streams;
    } else {
      goes_to(buffer, kInt8Columns, kInt8Panel);
    }
    const auto comes_from = [&](const float* from, Int stride, Int panel_stride) {
      tile.from = from;
      tile.from_stride = stride;
      tile.from_panel_stride = panel_stride;
    };
    if (!step.first) {
      comes_from(partial, kInt8Columns, kInt8Panel);
    } else if (!gemm.accumulate) {
      comes_from(nullptr, 0, 0);
    } else if (direct) {
      comes_from(c, gemm.c_stride, gemm.c_panel_stride);
    } else {
      for (Int r = 0; r < rows; ++r)
        for (Int n = 0; n < columns; ++n)
          buffer[r * kInt8Columns + n] =
              c[r * gemm.c_stride + n / kInt8Panel * gemm.c_panel_stride + n % kInt8Panel];
      comes_from(buffer, kInt8Columns, kInt8Panel);
    }
  }

  static void run_tile(const Int8Tile& whole, Int rows, Int panels) {
    if constexpr (kSumsAhead) {
      static_assert(Isa::kRows == kInt8Rows && Isa::kPanels == kInt8Panels);
      Isa::tile(static_cast<int>(rows), static_cast<int>(panels), whole.second != nullptr)(whole);
      return;
    } else {
      for (Int v = 0; v < panels; v += Isa::kPanels)
        for (Int i = 0; i < rows; i += Isa::kRows) {
          Int8Tile tile = whole;
          tile.a += i * tile.a_row;
          tile.a_scales += i * tile.a_scale_row;
          tile.a_lane += i * tile.a_lane_row;
          if (tile.a_second != nullptr) {
            tile.a_second += i * tile.a_row;
            tile.a_falls_back += i * tile.a_flag_row;
          }
          tile.b += v * tile.b_panel;
          for (Int n = 0; n < Isa::kPanels; ++n) tile.b_scales[n] = whole.b_scales[v + n];
          tile.compensation += v * tile.compensation_panel;
          if (tile.b_second != nullptr) {
            tile.b_second += v * tile.b_panel;
            tile.second_compensation += v * tile.compensation_panel;
            tile.b_falls_back += v * tile.b_flag_panel;
          }
          if (tile.from != nullptr) tile.from += i * tile.from_stride + v * tile.from_panel_stride;
          tile.to += i * tile.stride + v * tile.panel_stride;
          Isa::tile(static_cast<int>(smaller(Int{Isa::kRows}, rows - i)),
                    static_cast<int>(smaller(Int{Isa::kPanels}, panels - v)))(tile);
        }
    }
  }

  static double sum_squares(const Int8Tile& tile, Int rows, Int columns) {
    SquareSums sums;
    for (Int r = 0; r < rows; ++r)
      for (Int j = 0; j < columns; j += kInt8Panel)
        sums.add(tile.to + r * tile.stride + j / kInt8Panel * tile.panel_stride, columns - j);
    return sums.total();
  }

  // Chains that end, [rows][kInt8Columns], to C.
  static void finish(const Gemm& gemm, Int i, Int j, Int rows, Int columns, float* sums) {
    const Int size = gemm.c_dtype == DType::kFloat32 ? 4 : 2;
    const Int row_bytes = gemm.c_stride * size, panel_bytes = gemm.c_panel_stride * size;
    std::byte* row = place_in_c(gemm, i, j);
    for (Int r = 0; r < rows; ++r, sums += kInt8Columns, row += row_bytes) {
      if (gemm.bias != nullptr)
        for (Int n = 0; n < columns; ++n) sums[n] += gemm.bias[j + n];
      std::byte* panel = row;
      for (Int n = 0; n < columns; n += kInt8Panel, panel += panel_bytes)
        finish_panel(gemm, panel, sums + n, smaller(kInt8Panel, columns - n));
    }
  }

  static void finish_panel(const Gemm& gemm, std::byte* c, const float* sums, Int count) {
    const Int step = gemm.c_column_step;
    if (gemm.c_dtype == DType::kBFloat16) {
      auto* to = reinterpret_cast<std::uint16_t*>(c);
      if (count == kInt8Panel && step == 1) {
        Isa::narrow(to, sums);
      } else {
        for (Int n = 0; n < count; ++n) to[n * step] = cpu::narrow(sums[n]);
      }
      return;
    }
    auto* to = reinterpret_cast<float*>(c);
    if (gemm.streams && count == kInt8Panel && step == 1) {
      Isa::stream(to, sums);
    } else {
      for (Int n = 0; n < count; ++n) to[n * step] = sums[n];
    }
  }
};

template <class Isa>
constexpr GemmEngine int8_engine(const char* isa, const Int8Coding& (*coding)()) {
  using Compute = Int8Compute<Isa>;
  return {.isa = isa,
          .accepts = &Compute::accepts,
          .blocking = &Compute::blocking,
          .sum_terms = &Compute::sum_terms,
          .workspace_bytes = &Compute::workspace_bytes,
          .compute = &Compute::compute,
          .coding = coding};
}

}  // namespace
}  // namespace anabatic::kernels::cpu
