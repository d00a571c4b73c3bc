// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/int8/coding.h"
#include "kernels/cpu/int8/packed_matrix.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_rows.h"
#if ANABATIC_ISA_LANES == 16
#include "kernels/cpu/words_avx512.h"
#endif

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// Panels of so many elements pass the caches by: their lines were another core's, and go to all.
constexpr std::int64_t kStreamedElements = std::int64_t{1} << 18;

void convert(BFloat16* to, const float* from, std::int64_t count) {
  round_weights(to, from, count);
}
void convert(float* to, const BFloat16* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
template <class T>
void convert(T* to, const T* from, std::int64_t count) {
  std::copy_n(from, count, to);
}

// Every `step`-th of the elements from `from` on; 2 is a constant, so that it becomes shuffles.
template <class T>
void gather(T* to, const T* from, std::int64_t step, std::int64_t count) {
  if (step == 2)
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[2 * i];
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}

// What of each matrix of x is packed: some rows, or every `step`-th column as a row (0: rows).
struct Part {
  std::int64_t first_row = 0, first_column = 0, step = 0;
};
Part part_of(const spec::Attributes& attributes) {
  return {.first_row = spec::get_int_or(attributes, "first_row", 0),
          .first_column = spec::get_int_or(attributes, "first_column", 0),
          .step = spec::get_int_or(attributes, "column_step", 0)};
}

// One task packs 16 rows of x: a panel, or the same depth of every panel that they cross. They are
// converted a few columns at a time.
template <class To, class From, bool kStreamed>
void pack_as(const Arguments& args) {
  constexpr std::int64_t kColumns = 512;
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const PanelShape shape = panel_shape(*y.type);
  const Part part = part_of(*args.attributes);
  const bool by_columns = part.step > 0;
  const bool crosses = (y.type->layout == panels_layout(true)) != by_columns;
  const std::int64_t rows = y.type->dim(by_columns ? -1 : -2),
                     width = y.type->dim(by_columns ? -2 : -1);
  const std::int64_t matrix_rows = x.type->dim(-2), row_stride = x.type->dim(-1);
  const std::int64_t blocks = ceil_div(rows, kPanelColumns), panel = shape.panel_elements();
  const std::int64_t matrices = x.type->ndim() == 3 ? x.type->dim(0) : 1;
  const std::int64_t step = std::max<std::int64_t>(part.step, 1);
  const bool in_place = sizeof(To) == sizeof(From) && step == 1;
  args.launch.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    alignas(64) To copy[kPanelColumns * kColumns];
    alignas(64) From line[kColumns];
    const std::int64_t matrix = task / blocks, begin = task % blocks * kPanelColumns;
    const std::int64_t end = std::min(rows, begin + kPanelColumns);
    const From* source = x.as<const From>() +
                         (matrix * matrix_rows + part.first_row + begin) * row_stride +
                         part.first_column;
    To* panels = y.as<To>() + matrix * shape.num_elements();
    for (std::int64_t k = 0; k < width; k += kColumns) {
      const std::int64_t count = std::min(kColumns, width - k);
      const To* from = copy;
      std::int64_t stride = kColumns;
      if (in_place) {
        from = reinterpret_cast<const To*>(source + k);
        stride = row_stride;
      } else {
        for (std::int64_t row = 0; row < end - begin; ++row) {
          const From* elements = source + row * row_stride + k * step;
          if (step > 1) {
            gather(line, elements, step, count);
            elements = line;
          }
          convert(copy + row * kColumns, elements, count);
        }
      }
      if (crosses)
        pack_depth<kStreamed>(panels + k / kPanelColumns * panel, panel, count, from, stride, begin,
                              end);
      else
        pack_panel<kStreamed>(panels + begin / kPanelColumns * panel + k * kPanelColumns, from,
                              stride, end - begin, count);
    }
    if (kStreamed) stream_end();
  });
}

// Rows [begin, end) of a bf16 panel, pairs of the depth side by side, as rows of 16; `begin` is
// even. After an odd `end` one more row is written.
void split_pairs(BFloat16* to, const BFloat16* panel, std::int64_t begin, std::int64_t end) {
  for (std::int64_t k = begin; k < end; k += 2, to += 2 * kPanelColumns)
    for (std::int64_t lane = 0; lane < kPanelColumns; lane += kLanes) {
      Words pairs;
      std::memcpy(&pairs, panel + k * kPanelColumns + 2 * lane, sizeof pairs);
      store_bits(to + lane, pairs & 0xFFFFu, kLanes);
      store_bits(to + kPanelColumns + lane, pairs >> 16, kLanes);
    }
}

#if ANABATIC_ISA_LANES == 16
// 16 rows of a bf16 panel to a transposed one, where they are columns and the lanes are the depth.
// Pairs are of rows before and of lanes after: two lanes (a0 a1)(b0 b1) become (a0 b0)(a1 b1), and
// each two are transposed as one element.
template <bool kStreamed>
ANABATIC_INLINE void transpose_square(BFloat16* to, const BFloat16* panel) {
  Words pairs[kLanes / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) {
    Words words;
    std::memcpy(&words, panel + i * 2 * kPanelColumns, sizeof words);
    const Words other =
        __builtin_shufflevector(words, words, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    // Lower 16 bits of both in even lanes, upper 16 bits in odd lanes.
    const Words even = (words & 0xFFFFu) | other << 16, odd = other >> 16 | (words & 0xFFFF0000u);
    pairs[i] = __builtin_shufflevector(even, odd, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29,
                                       14, 31);
  }
  transpose<kLanes / 2, 1, 2>(pairs);
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) store_words<kStreamed>(to + i * 2 * kPanelColumns, pairs[i]);
}
#endif

// One task packs a few hundred rows of a panel, f32 or, to bf16, bf16.
template <class To, class From, bool kStreamed>
void pack_panels(const Arguments& args) {
  constexpr std::int64_t kTaskRows = 512, kRows = 64;
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const PanelShape shape = panel_shape(*x.type), packed = panel_shape(*y.type);
  const bool transposed = y.type->layout == panels_layout(true);
  const std::int64_t matrices = x.type->ndim() == 3 ? x.type->dim(0) : 1;
  const std::int64_t parts = ceil_div(shape.depth, kTaskRows);
  args.launch.team->for_tasks(matrices * shape.num_panels() * parts, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) BFloat16 copy[kRounds ? kRows * kPanelColumns : 1];
    const std::int64_t panel = task / parts, begin = task % parts * kTaskRows;
    const std::int64_t matrix = panel / shape.num_panels();
    const std::int64_t column = panel % shape.num_panels() * kPanelColumns;
    const PanelTargets<To> targets{
        .panel = transposed ? nullptr : y.as<To>() + panel * packed.panel_elements(),
        .transposed = transposed ? y.as<To>() + matrix * packed.num_elements() : nullptr,
        .panel_elements = packed.panel_elements(),
        .first_column = column,
        .columns = std::min(kPanelColumns, shape.columns - column)};
    const std::int64_t end = std::min(shape.depth, begin + kTaskRows);
    for (std::int64_t k = begin; k < end; k += kRows) {
      const std::int64_t rows = std::min(kRows, end - k);
      const From* source = x.as<const From>() + panel * shape.panel_elements();
      if constexpr (kStreamed)
        for (std::int64_t i = 0; i < kRows * kPanelColumns; i += 64 / std::int64_t{sizeof(From)})
          __builtin_prefetch(source + (k + 2 * kRows) * kPanelColumns + i);
      [[maybe_unused]] const From* from = source + k * kPanelColumns;
      if constexpr (sizeof(From) == sizeof(BFloat16)) {
#if ANABATIC_ISA_LANES == 16
        if (transposed && rows == kRows && targets.columns == kPanelColumns) {
          for (std::int64_t row = k; row < k + rows; row += kPanelColumns)
            transpose_square<kStreamed>(targets.transposed +
                                            row / kPanelColumns * targets.panel_elements +
                                            column * kPanelColumns,
                                        source + row * kPanelColumns);
          continue;
        }
#endif
        split_pairs(copy, source, k, k + rows);
        targets.template write<kStreamed>(copy, k, k + rows);
      } else if constexpr (kRounds) {
        round_weights(copy, from, rows * kPanelColumns);
        targets.template write<kStreamed>(copy, k, k + rows);
      } else {
        targets.template write<kStreamed>(from, k, k + rows);
      }
    }
    if (kStreamed) stream_end();
  });
}

// The row-major matrix of panels, f32 or, to bf16, bf16.
template <class To, class From>
void unpack(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const PanelShape shape = panel_shape(*x.type);
  const std::int64_t matrices = x.type->ndim() == 3 ? x.type->dim(0) : 1;
  args.launch.team->for_tasks(matrices * shape.num_panels(), [&](std::int64_t panel) {
    const std::int64_t matrix = panel / shape.num_panels();
    const std::int64_t column = panel % shape.num_panels() * kPanelColumns;
    const From* from = x.as<const From>() + panel * shape.panel_elements();
    for (std::int64_t n = column; n < std::min(shape.columns, column + kPanelColumns); ++n) {
      To* to = y.as<To>() + (matrix * shape.columns + n) * shape.depth;
      if constexpr (sizeof(From) == sizeof(BFloat16)) {
        for (std::int64_t k = 0; k < shape.depth; ++k) to[k] = from[shape.offset(n - column, k)];
      } else {
        float row[kLanes];
        for (std::int64_t k = 0; k < shape.depth; k += kLanes) {
          const std::int64_t count = std::min<std::int64_t>(kLanes, shape.depth - k);
          for (std::int64_t i = 0; i < count; ++i)
            row[i] = from[(k + i) * kPanelColumns + n - column];
          if constexpr (sizeof(To) == sizeof(BFloat16))
            round_weights(to + k, row, count);
          else
            std::memcpy(to + k, row, static_cast<std::size_t>(count) * sizeof(float));
        }
      }
    }
  });
}

// [16][16] the other way round.
void turn_square(float* to, const float* from) {
#if ANABATIC_ISA_LANES == 16
  Words rows[kLanes];
  std::memcpy(rows, from, sizeof rows);
  transpose(rows);
  std::memcpy(to, rows, sizeof rows);
#else
  for (std::int64_t i = 0; i < kPanelColumns; ++i)
    for (std::int64_t j = 0; j < kPanelColumns; ++j)
      to[i * kPanelColumns + j] = from[j * kPanelColumns + i];
#endif
}

// A whole matrix to f16, or one of f16 to another layout, in squares of 16 that go through f32. One
// task makes 16 rows of the matrix.
template <class From>
void pack_halves(const Arguments& args) {
  constexpr std::int64_t kSide = kPanelColumns;
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const std::int64_t rows = y.type->dim(-2), columns = y.type->dim(-1),
                     matrices = y.type->ndim() == 3 ? y.type->dim(0) : 1,
                     blocks = ceil_div(rows, kSide);
  const bool from_rows = x.type->layout == kRowMajor, to_rows = y.type->layout == kRowMajor,
             is_transposed = y.type->layout == panels_layout(true);
  // A square has lines of the depth for panels, else lines are rows of the matrix.
  const bool turns = from_rows != (to_rows || is_transposed);
  const std::int64_t from_panel = from_rows ? 0 : panel_shape(*x.type).panel_elements(),
                     to_panel = to_rows ? 0 : panel_shape(*y.type).panel_elements();
  const std::int64_t from_matrix = from_rows ? rows * columns : panel_shape(*x.type).num_elements(),
                     to_matrix = to_rows ? rows * columns : panel_shape(*y.type).num_elements();
  args.launch.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    alignas(64) float square[kSide * kSide], turned[kSide * kSide];
    const std::int64_t matrix = task / blocks, block = task % blocks, row = block * kSide;
    const std::int64_t num_rows = std::min(kSide, rows - row);
    const From* source = x.as<const From>() + matrix * from_matrix;
    Float16* target = y.as<Float16>() + matrix * to_matrix;
    for (std::int64_t k = 0; k < columns; k += kSide) {
      const std::int64_t depth = std::min(kSide, columns - k);
      const std::int64_t lines = from_rows ? num_rows : depth, width = from_rows ? depth : kSide;
      for (std::int64_t i = 0; i < kSide; ++i) {
        const From* line = from_rows ? source + (row + i) * columns + k
                                     : source + block * from_panel + (k + i) * kSide;
        for_lanes(0, kSide, [&](std::int64_t j, int) {
          const auto count = static_cast<int>(std::clamp<std::int64_t>(width - j, 0, kLanes));
          store(square + i * kSide + j, i < lines ? load(line + j, count) : Floats{});
        });
      }
      if (turns) turn_square(turned, square);
      const float* lanes = turns ? turned : square;
      const std::int64_t to_lines = to_rows || is_transposed ? num_rows : depth;
      for (std::int64_t i = 0; i < to_lines; ++i) {
        Float16* line = to_rows         ? target + (row + i) * columns + k
                        : is_transposed ? target + k / kSide * to_panel + (row + i) * kSide
                                        : target + block * to_panel + (k + i) * kSide;
        for_lanes(0, to_rows ? depth : kSide, [&](std::int64_t j, int n) {
          store(line + j, load(lanes + i * kSide + j, n), n);
        });
      }
    }
  });
}

// To panels of int8 products, from rows. One task makes a row of tiles of a matrix.
void pack_in_int8(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const bool transposed = y.type->layout == panels_layout(true);
  const std::int64_t rows = y.type->dim(-2), columns = y.type->dim(-1),
                     matrices = y.type->ndim() == 3 ? y.type->dim(0) : 1,
                     tile_rows = ceil_div(rows, kInt8Tile);
  args.launch.team->for_tasks(matrices * tile_rows, [&](std::int64_t task) {
    const std::int64_t matrix = task / tile_rows, tile_row = task % tile_rows;
    const Int8Source w{.data = x.data + matrix * rows * columns * size_bytes(x.type->dtype),
                       .dtype = x.type->dtype,
                       .rows = rows,
                       .columns = columns,
                       .stride = columns};
    const Int8Lines lines = int8_matrix(y, matrix);
    int8_coding().weights(w, tile_row, tile_row + 1, transposed ? nullptr : &lines,
                          transposed ? &lines : nullptr);
  });
}

using Block4x4 = std::int8_t __attribute__((vector_size(16)));
using Sums4x4 = std::int32_t __attribute__((vector_size(64)));

// Where the lines of one packing are the depth of the other. Strides count bytes.
struct TurnedPanels {
  const std::int8_t* from;  // the block's first line, in the panel that has it
  std::int64_t from_panel, from_units;
  std::int8_t* to;  // the first panel's unit of the block
  std::int64_t to_panel;
  std::int64_t first_unit;  // of `from`, which is that of the first panel's first line
  std::int64_t panels, depth;
  std::int32_t* compensation;  // the block's, of the first panel
  std::int64_t compensation_panel;
};

// Sixteen bytes are four rows of four columns in either packing, so one shuffle turns them.
void turn_panels(const TurnedPanels& in) {
  constexpr std::int64_t kGroups = kPanelColumns / kInt8Unit, kMostPanels = 4;
  Sums4x4 sums[kMostPanels * kGroups] = {};
  for (std::int64_t n = 0; n < in.depth; n += kInt8Unit) {
    const std::int8_t* rows =
        in.from + n / kPanelColumns * in.from_panel + n % kPanelColumns * kInt8Unit;
    for (std::int64_t group = 0; group < in.panels * kGroups; ++group) {
      const std::int64_t unit = in.first_unit + group;
      Block4x4 values{};
      if (unit < in.from_units)
        std::memcpy(&values, rows + unit * kPanelColumns * kInt8Unit, sizeof values);
      const Block4x4 turned = __builtin_shufflevector(values, values, 0, 4, 8, 12, 1, 5, 9, 13, 2,
                                                      6, 10, 14, 3, 7, 11, 15);
      std::memcpy(in.to + group / kGroups * in.to_panel + n * kPanelColumns +
                      group % kGroups * std::int64_t{sizeof turned},
                  &turned, sizeof turned);
      sums[group] += __builtin_convertvector(turned, Sums4x4);
    }
  }
  for (std::int64_t group = 0; group < in.panels * kGroups; ++group) {
    std::int32_t* compensation =
        in.compensation + group / kGroups * in.compensation_panel + group % kGroups * kInt8Unit;
    for (int i = 0; i < kInt8Unit; ++i) {
      const Sums4x4& of = sums[group];
      compensation[i] = -128 * (of[4 * i] + of[4 * i + 1] + of[4 * i + 2] + of[4 * i + 3]);
    }
  }
}

#if ANABATIC_ISA_LANES == 16
// As turn_panels, of whole panels and sixteen lines at a time.
void turn_whole_panels(const TurnedPanels& in, bool streams) {
  const __m512i turns =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const std::int64_t panel_bytes = kPanelColumns * kPanelColumns;
  for (std::int64_t p = 0; p < in.panels; ++p) {
    const std::int8_t* from = in.from + in.first_unit * kPanelColumns * kInt8Unit + p * panel_bytes;
    std::int8_t* to = in.to + p * in.to_panel;
    __m512i sums = _mm512_setzero_si512();
    for (std::int64_t n = 0; n < in.depth; n += kPanelColumns) {
      __m512i turned[4], lanes[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        turned[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(from + i * 64), turns);
      // A 4 x 4 transpose of 128-bit lanes.
      lanes[0] = _mm512_shuffle_i32x4(turned[0], turned[1], 0x44);
      lanes[1] = _mm512_shuffle_i32x4(turned[2], turned[3], 0x44);
      lanes[2] = _mm512_shuffle_i32x4(turned[0], turned[1], 0xEE);
      lanes[3] = _mm512_shuffle_i32x4(turned[2], turned[3], 0xEE);
      turned[0] = _mm512_shuffle_i32x4(lanes[0], lanes[1], 0x88);
      turned[1] = _mm512_shuffle_i32x4(lanes[0], lanes[1], 0xDD);
      turned[2] = _mm512_shuffle_i32x4(lanes[2], lanes[3], 0x88);
      turned[3] = _mm512_shuffle_i32x4(lanes[2], lanes[3], 0xDD);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums = add_byte_pairs(sums, turned[i]);
        if (streams)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * 64), turned[i]);
        else
          _mm512_storeu_si512(to + i * 64, turned[i]);
      }
      from += in.from_panel;
      to += panel_bytes;
    }
    _mm512_storeu_si512(in.compensation + p * in.compensation_panel,
                        _mm512_mullo_epi32(byte_sums(sums), _mm512_set1_epi32(-128)));
  }
}
#endif

// The second packing of int8 products from the first one. One task makes a few panels, so that it
// reads runs of whole cache lines.
void turn_int8_panels(const Arguments& args) {
  constexpr std::int64_t kTaskPanels = 4;
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const PanelShape from = panel_shape(*x.type), to = panel_shape(*y.type);
  const std::int64_t blocks = int8_blocks(to.depth), tasks = ceil_div(to.num_panels(), kTaskPanels),
                     matrices = y.type->ndim() == 3 ? y.type->dim(0) : 1;
  const std::int64_t tiles =
      matrices * ceil_div(y.type->dim(-2), kInt8Tile) * scale_columns(*y.type);
  std::memcpy(y.scales<BFloat16>(), x.scales<BFloat16>(),
              static_cast<std::size_t>(tiles) * sizeof(BFloat16));
  [[maybe_unused]] const bool streams = y.type->num_elements() >= kStreamedElements &&
                                        reinterpret_cast<std::uintptr_t>(y.data) % 64 == 0;
  args.launch.team->for_tasks(matrices * tasks, [&](std::int64_t task) {
    const std::int64_t matrix = task / tasks, first = task % tasks * kTaskPanels,
                       panel = matrix * to.num_panels() + first;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t n = block * kInt8Tile;
      const TurnedPanels turned{
          .from = x.as<const std::int8_t>() + matrix * from.num_elements() +
                  n / kPanelColumns * from.panel_elements(),
          .from_panel = from.panel_elements(),
          .from_units = from.units(),
          .to = y.as<std::int8_t>() + panel * to.panel_elements() + n * kPanelColumns,
          .to_panel = to.panel_elements(),
          .first_unit = first * (kPanelColumns / kInt8Unit),
          .panels = std::min(kTaskPanels, to.num_panels() - first),
          .depth = std::min(to.depth - n, kInt8Tile),
          .compensation = y.compensations() + (panel * blocks + block) * kPanelColumns,
          .compensation_panel = blocks * kPanelColumns};
#if ANABATIC_ISA_LANES == 16
      if (turned.depth % kPanelColumns == 0 &&
          turned.first_unit + turned.panels * (kPanelColumns / kInt8Unit) <= turned.from_units) {
        turn_whole_panels(turned, streams);
        continue;
      }
#endif
      turn_panels(turned);
    }
#if ANABATIC_ISA_LANES == 16
    if (streams) _mm_sfence();  // before another thread may read
#endif
  });
}

}  // namespace

void pack(const Arguments& args) {
  if (args.outputs[0].type->num_elements() == 0) return;
  if (is_int8_panels(*args.outputs[0].type))
    return args.inputs[0].type->is_quantized() ? turn_int8_panels(args) : pack_in_int8(args);
  if (args.outputs[0].type->dtype == DType::kFloat16)
    return args.inputs[0].type->dtype == DType::kFloat16 ? pack_halves<Float16>(args)
                                                         : pack_halves<float>(args);
  const bool streams = args.outputs[0].type->num_elements() >= kStreamedElements;
  if (args.inputs[0].type->layout != kRowMajor) {
    const bool to_rows = args.outputs[0].type->layout == kRowMajor;
    if (args.inputs[0].type->dtype == DType::kBFloat16)
      return to_rows   ? unpack<BFloat16, BFloat16>(args)
             : streams ? pack_panels<BFloat16, BFloat16, true>(args)
                       : pack_panels<BFloat16, BFloat16, false>(args);
    return with_float_type(args.outputs[0].type->dtype, [&]<class To>(To*) {
      to_rows   ? unpack<To, float>(args)
      : streams ? pack_panels<To, float, true>(args)
                : pack_panels<To, float, false>(args);
    });
  }
  with_float_type(args.inputs[0].type->dtype, [&]<class From>(From*) {
    with_float_type(args.outputs[0].type->dtype, [&]<class To>(To*) {
      streams ? pack_as<To, From, true>(args) : pack_as<To, From, false>(args);
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
