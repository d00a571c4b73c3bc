// SPDX-License-Identifier: Apache-2.0
// The values of sparse weights in the order in which their products read them.
#include <algorithm>

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"
#include "spec/sparse_layout.h"
#if ANABATIC_ISA_LANES == 16
#include "kernels/cpu/words_avx512.h"
#endif

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

using Int = std::int64_t;

constexpr int kGroup = 16;

// Bits of bf16, half away from zero, as tensor/dtype.h has it for weights.
ANABATIC_INLINE std::uint32_t bf16_bits(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t quiet = (bits >> 16) | 0x40u, rounded = (bits + 0x8000u) >> 16;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded;
}

// A block of sixteen lines and `depth` of a weight in f32: element (line, k) lies at
// from + line · line_stride + k · depth_stride, and is zero from `lines` or `inside` on.
struct Part {
  const float* from;
  Int line_stride, depth_stride, lines, inside;

  ANABATIC_INLINE float at(Int line, Int k) const {
    return line < lines && k < inside ? from[line * line_stride + k * depth_stride] : 0.0f;
  }
  bool is_whole(Int depth) const { return lines >= kGroup && inside >= depth; }
};

void pack_part(const Part& part, Int depth, float* __restrict to) {
  for (Int k = 0; k < depth; ++k)
    for (Int line = 0; line < kGroup; ++line) to[k * kGroup + line] = part.at(line, k);
}

// Pairs of the depth.
void pack_part(const Part& part, Int depth, std::uint32_t* __restrict to) {
  if (!part.is_whole(depth)) {
    for (Int k = 0; k < depth; k += 2)
      for (Int line = 0; line < kGroup; ++line)
        to[k / 2 * kGroup + line] = bf16_bits(part.at(line, k)) | bf16_bits(part.at(line, k + 1))
                                                                      << 16;
    return;
  }
  if (part.line_stride == 1) {
    for (Int k = 0; k < depth; k += 2) {
      const float *first = part.from + k * part.depth_stride, *second = first + part.depth_stride;
      for (Int line = 0; line < kGroup; ++line)
        to[k / 2 * kGroup + line] = bf16_bits(first[line]) | bf16_bits(second[line]) << 16;
    }
    return;
  }
  alignas(64) std::uint32_t words[kGroup][kGroup];  // of each line
  for (Int line = 0; line < kGroup; ++line) {
    const float* from = part.from + line * part.line_stride;
    for (Int u = 0; u < depth / 2; ++u)
      words[line][u] = bf16_bits(from[2 * u]) | bf16_bits(from[2 * u + 1]) << 16;
  }
#if ANABATIC_ISA_LANES == 16
  if (depth == 2 * kGroup)
    return transpose_words(to, reinterpret_cast<const std::byte*>(words), sizeof words[0]);
#endif
  for (Int u = 0; u < depth / 2; ++u)
    for (Int line = 0; line < kGroup; ++line) to[u * kGroup + line] = words[line][u];
}

// The rows of a block, which lie `stride` apart.
ANABATIC_INLINE void prefetch_block(const float* block, Int stride, Int rows, Int columns) {
  constexpr Int kLine = 64 / sizeof(float);
  for (Int row = 0; row < rows; ++row)
    for (Int i = 0; i < columns; i += kLine) __builtin_prefetch(block + row * stride + i);
}

// The blocks of one panel. T: f32, or words of two bf16.
template <class T>
void pack_panel(const Arguments& args, const spec::SparseLayout& layout, bool transposed, Int group,
                Int panel) {
  constexpr Int kPair = sizeof(T) == 4 && !__is_same(T, float) ? 2 : 1;
  const Int rows = transposed ? layout.depth : layout.lines,
            width = transposed ? layout.lines : layout.depth;
  const float* x = args.inputs[0].as<const float>() + group * rows * width;
  const std::int32_t* offsets =
      args.inputs[1].as<const std::int32_t>() + group * layout.index_size();
  const std::int32_t* steps = offsets + layout.panels() + 1;
  T* to = args.outputs[0].as<T>() +
          (group * layout.kept + offsets[panel]) * layout.block_size() / kPair;
  const Int line_stride = transposed ? 1 : width, depth_stride = transposed ? width : 1;
  const Int line_begin = panel * layout.side,
            lines = std::min<Int>(layout.side, layout.lines - line_begin);
  for (Int n = offsets[panel]; n < offsets[panel + 1]; ++n) {
    const Int k = steps[n] * layout.side;
    if (n + 1 < offsets[panel + 1]) {  // the hardware does not follow blocks
      const Int next = steps[n + 1] * layout.side,
                inside = std::min<Int>(layout.side, layout.depth - next);
      if (transposed)
        prefetch_block(x + next * width + line_begin, width, inside, lines);
      else
        prefetch_block(x + line_begin * width + next, width, lines, inside);
    }
    for (Int part = 0; part < layout.side; part += kGroup) {
      const Int line = panel * layout.side + part;
      pack_part({.from = x + line * line_stride + k * depth_stride,
                 .line_stride = line_stride,
                 .depth_stride = depth_stride,
                 .lines = layout.lines - line,
                 .inside = layout.depth - k},
                layout.side, to);
      to += layout.side * kGroup / kPair;
    }
  }
}

// The present weights of some lines, one by one.
template <class T>
void pack_lines(const Arguments& args, const spec::SparseLayout& layout, bool transposed, Int group,
                Int first, Int end) {
  const Int rows = transposed ? layout.depth : layout.lines,
            width = transposed ? layout.lines : layout.depth;
  const float* x = args.inputs[0].as<const float>() + group * rows * width;
  const std::int32_t* offsets =
      args.inputs[1].as<const std::int32_t>() + group * layout.index_size();
  const std::int32_t* steps = offsets + layout.panels() + 1;
  T* to = args.outputs[0].as<T>() + group * layout.kept;
  const Int line_stride = transposed ? 1 : width, depth_stride = transposed ? width : 1;
  for (Int line = first; line < end; ++line)
    for (Int n = offsets[line]; n < offsets[line + 1]; ++n) {
      const float value = x[line * line_stride + steps[n] * depth_stride];
      if constexpr (__is_same(T, float))
        to[n] = value;
      else
        to[n] = static_cast<T>(bf16_bits(value));
    }
}

// Sixteen lines by sixteen of the depth of a weight, as columns of lines; zero where there is none.
ANABATIC_INLINE void load_square(const Part& part, float* to) {
  if (part.is_whole(kGroup) && part.line_stride == 1) {
    for (Int k = 0; k < kGroup; ++k)
      __builtin_memcpy(to + k * kGroup, part.from + k * part.depth_stride, kGroup * sizeof(float));
    return;
  }
#if ANABATIC_ISA_LANES == 16
  if (part.is_whole(kGroup))
    return transpose_words(to, reinterpret_cast<const std::byte*>(part.from),
                           part.line_stride * Int{sizeof(float)});
#endif
  for (Int k = 0; k < kGroup; ++k)
    for (Int line = 0; line < kGroup; ++line) to[k * kGroup + line] = part.at(line, k);
}

// Two weights of each four of sixteen lines, by their places. T: f32, or words of two bf16.
template <class T>
ANABATIC_INLINE void pack_fours(const float* fours, const std::uint8_t* places, int bit, T* to) {
  using Bytes = std::uint8_t __attribute__((vector_size(kGroup)));
  using Lines = std::uint32_t __attribute__((vector_size(4 * kGroup)));
  Bytes bytes;
  std::memcpy(&bytes, places, sizeof bytes);
  const Lines at = __builtin_convertvector(bytes, Lines) >> bit, first = at & 3u,
              second = at >> 2 & 3u;
  Lines weight[4];
  std::memcpy(weight, fours, sizeof weight);
  const Lines x = first == 0u   ? weight[0]
                  : first == 1u ? weight[1]
                                : weight[2],
              y = second == 1u   ? weight[1]
                  : second == 2u ? weight[2]
                                 : weight[3];
  if constexpr (__is_same(T, float)) {
    std::memcpy(to, &x, sizeof x);
    std::memcpy(to + kGroup, &y, sizeof y);
  } else {
    // bf16_bits of each.
    const Lines rounded_x = (x + 0x8000u) >> 16, rounded_y = (y + 0x8000u) >> 16;
    const Lines one = (x & 0x7FFFFFFFu) > 0x7F800000u ? (x >> 16 | 0x40u) : rounded_x,
                two = (y & 0x7FFFFFFFu) > 0x7F800000u ? (y >> 16 | 0x40u) : rounded_y;
    const Lines words =
        (first ^ second) > 1u ? (two | one << 16) : (one | two << 16);  // spec::is_pair_turned
    std::memcpy(to, &words, sizeof words);
  }
}

// Groups of four [begin, end) of panels [panel, panel_end) of 2:4, `begin` a multiple of 4: sixteen
// of the depth of all these panels one after the other.
template <class T>
void pack_two_of_four(const Arguments& args, const spec::SparseLayout& layout, bool transposed,
                      Int group, Int panel_begin, Int panel_end, Int begin, Int end) {
  constexpr Int kWords = __is_same(T, float) ? 32 : 16;  // of a group of four
  const Int rows = transposed ? layout.depth : layout.lines,
            width = transposed ? layout.lines : layout.depth, groups = layout.depth / 4;
  const float* x = args.inputs[0].as<const float>() + group * rows * width;
  const std::uint8_t* all_places =
      args.inputs[1].as<const std::uint8_t>() + group * layout.index_size();
  T* all = args.outputs[0].as<T>() + group * layout.kept * groups * kWords;
  const Int line_stride = transposed ? 1 : width, depth_stride = transposed ? width : 1;
  alignas(64) float square[kGroup * kGroup];
  for (Int g = begin; g < end; g += 4)
    for (Int panel = panel_begin; panel < panel_end; ++panel) {
      const Int line = panel * kGroup;
      // Sixteen rows at once are more streams than hardware follows.
      constexpr Int kAhead = 4 * kGroup;
      if (!transposed && line + kGroup <= layout.lines && 4 * g + kAhead < layout.depth)
        for (Int row = line; row < line + kGroup; ++row)
          __builtin_prefetch(x + row * width + 4 * g + kAhead);
      load_square({.from = x + line * line_stride + 4 * g * depth_stride,
                   .line_stride = line_stride,
                   .depth_stride = depth_stride,
                   .lines = layout.lines - line,
                   .inside = layout.depth - 4 * g},
                  square);
      const std::uint8_t* places = all_places + panel * layout.panel_index_size();
      T* to = all + (panel * groups + g) * kWords;
      for (Int n = g; n < end && n < g + 4; ++n, to += kWords)
        pack_fours(square + (n - g) * 4 * kGroup, places + n / 2 * kGroup, n % 2 != 0 ? 4 : 0, to);
    }
}

// One task has a panel of rows of the weight, or sixteen rows that all panels read.
template <class T>
void pack_all_two_of_four(const Arguments& args, const spec::SparseLayout& layout, bool transposed,
                          Int matrices) {
  const Int groups = layout.depth / 4, parts = (groups + 3) / 4;
  if (transposed)
    return args.launch.team->for_tasks(matrices * parts, [&](Int task) {
      const Int begin = task % parts * 4, end = begin + 4 < groups ? begin + 4 : groups;
      pack_two_of_four<T>(args, layout, true, task / parts, 0, layout.panels(), begin, end);
    });
  args.launch.team->for_tasks(matrices * layout.panels(), [&](Int task) {
    const Int panel = task % layout.panels();
    pack_two_of_four<T>(args, layout, false, task / layout.panels(), panel, panel + 1, 0, groups);
  });
}

}  // namespace

void pack_sparse(const Arguments& args) {
  const TensorView &x = args.inputs[0], &index = args.inputs[1];
  const bool transposed = spec::get_bool(*args.attributes, "transposed");
  const auto pattern =
      spec::sparsity_pattern_from_string(spec::get_string(*args.attributes, "pattern"));
  const spec::SparseLayout layout =
      spec::sparse_layout_by_index(*pattern, transposed ? columns(x) : x.type->dim(-2),
                                   transposed ? x.type->dim(-2) : columns(x), columns(index));
  const Int groups = x.type->ndim() == 3 ? rows(x) : 1;
  const bool is_bf16 = args.outputs[0].type->dtype == DType::kBFloat16;
  if (layout.side == 1) {
    constexpr Int kLines = 64;  // of a task
    const Int parts = (layout.lines + kLines - 1) / kLines;
    args.launch.team->for_tasks(groups * parts, [&](Int task) {
      const Int first = task % parts * kLines,
                end = first + kLines < layout.lines ? first + kLines : layout.lines;
      if (is_bf16)
        pack_lines<std::uint16_t>(args, layout, transposed, task / parts, first, end);
      else
        pack_lines<float>(args, layout, transposed, task / parts, first, end);
    });
    return;
  }
  if (layout.is_two_of_four)
    return is_bf16 ? pack_all_two_of_four<std::uint32_t>(args, layout, transposed, groups)
                   : pack_all_two_of_four<float>(args, layout, transposed, groups);
  args.launch.team->for_tasks(groups * layout.panels(), [&](Int task) {
    const Int group = task / layout.panels(), panel = task % layout.panels();
    if (is_bf16)
      pack_panel<std::uint32_t>(args, layout, transposed, group, panel);
    else
      pack_panel<float>(args, layout, transposed, group, panel);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
