// SPDX-License-Identifier: Apache-2.0
// The values of sparse weights in the order in which their products read them.
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
  for (Int n = offsets[panel]; n < offsets[panel + 1]; ++n) {
    const Int k = steps[n] * layout.side;
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

}  // namespace

void pack_sparse(const Arguments& args) {
  const TensorView &x = args.inputs[0], &index = args.inputs[1];
  const bool transposed = spec::get_bool(*args.attributes, "transposed");
  const auto pattern =
      spec::sparsity_pattern_from_string(spec::get_string(*args.attributes, "pattern"));
  spec::SparseLayout layout =
      spec::sparse_layout(*pattern, x.type->dim(-2), columns(x), 0, transposed);
  layout.kept = columns(index) - layout.panels() - 1;
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
  args.launch.team->for_tasks(groups * layout.panels(), [&](Int task) {
    const Int group = task / layout.panels(), panel = task % layout.panels();
    if (is_bf16)
      pack_panel<std::uint32_t>(args, layout, transposed, group, panel);
    else
      pack_panel<float>(args, layout, transposed, group, panel);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
