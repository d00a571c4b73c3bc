// SPDX-License-Identifier: Apache-2.0
// Sixteen rows of a weight are the lanes of its panels, and a group runs along the depth: so scales
// and elements of sixteen groups are found at once, without sums or maxima across lanes.
#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_rows.h"
#include "tensor/grid_elements.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr std::int64_t kBlockRows = 128;  // of the depth: whole groups
constexpr std::int64_t kTaskRows = 512;   // likewise
static_assert(kBlockRows % kInt4Groups.back() == 0 && kTaskRows % kBlockRows == 0);

using Lanes = float[kPanelColumns];

// Sixteen rows of a matrix by their depth: a panel of f32, or rows.
struct WeightRows {
  const float* data;
  std::int64_t stride;  // between rows; 0: of a panel
  std::int64_t count;   // rows that there are

  // Depth [begin, end) as [depth][16]: in place, or at `copy`.
  const float* lanes(std::int64_t begin, std::int64_t end, float* copy) const {
    if (stride == 0) return data + begin * kPanelColumns;
    for (std::int64_t row = 0; row < kPanelColumns; ++row)
      for (std::int64_t k = begin; k < end; ++k)
        copy[(k - begin) * kPanelColumns + row] = row < count ? data[row * stride + k] : 0.0f;
    return copy;
  }
};

// Takes elements of a larger magnitude: in the end the first one of the largest.
ANABATIC_INLINE void take_largest(const float* x, std::int64_t depth, Lanes& largest) {
  for (int lane = 0; lane < kPanelColumns; lane += kLanes) {
    Floats most = load(largest + lane);
    for (std::int64_t k = 0; k < depth; ++k) {
      const Floats value = load(x + k * kPanelColumns + lane);
      most = magnitude_of(value) > magnitude_of(most) ? value : most;
    }
    store(largest + lane, most);
  }
}

struct LaneScales {
  alignas(64) Lanes scale, rule;
};

// Lanes beyond `count` are padding, whose values are +0.
template <class Encoder>
ANABATIC_INLINE LaneScales scales_of(const Lanes& largest, std::int64_t count) {
  LaneScales scales;
  for (int lane = 0; lane < kPanelColumns; ++lane) {
    const GridScale one = Encoder::scale_of(largest[lane]);
    scales.scale[lane] = lane < count ? one.scale : 0.0f;
    scales.rule[lane] = one.rule;
  }
  return scales;
}

template <class Encoder, class To>
ANABATIC_INLINE void round_to_grid(const float* x, std::int64_t depth, const LaneScales& scales,
                                   To* y) {
  for (int lane = 0; lane < kPanelColumns; lane += kLanes) {
    const Floats scale = load(scales.scale + lane), rule = load(scales.rule + lane);
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t i = k * kPanelColumns + lane;
      store(y + i, Encoder::value_of(Encoder::element_of(load(x + i), rule), scale));
    }
  }
}

void round_plainly(const float* x, std::int64_t count, float* y) { std::copy_n(x, count, y); }
void round_plainly(const float* x, std::int64_t count, BFloat16* y) { round_weights(y, x, count); }

// Where sixteen rows of a result go.
template <class To>
struct Target {
  PanelTargets<To> panels;
  To* rows;  // of the result in rows; null: in panels
  std::int64_t depth;

  void write(const To* lanes, std::int64_t begin, std::int64_t end) const {
    if (rows == nullptr) return panels.template write<false>(lanes, begin, end);
    for (std::int64_t row = 0; row < panels.columns; ++row)
      for (std::int64_t k = begin; k < end; ++k)
        rows[row * depth + k] = lanes[(k - begin) * kPanelColumns + row];
  }
};

// Depth [begin, end) of sixteen rows. `group` 0: scales are those of the whole depth.
template <class Encoder, class To>
__attribute__((flatten)) void fake_quantize_rows(const WeightRows& x, std::int64_t group,
                                                 std::int64_t begin, std::int64_t end,
                                                 const Target<To>& target) {
  alignas(64) float copy[kBlockRows * kPanelColumns];
  alignas(64) To rounded[kBlockRows * kPanelColumns];
  LaneScales scales;
  alignas(64) Lanes largest;
  if (group == 0) {
    std::copy_n(x.lanes(begin, begin + 1, copy), kPanelColumns, largest);
    for (std::int64_t k = begin; k < end; k += kBlockRows) {
      const std::int64_t last = std::min(end, k + kBlockRows);
      take_largest(x.lanes(k, last, copy), last - k, largest);
    }
    scales = scales_of<Encoder>(largest, x.count);
  }
  for (std::int64_t k = begin; k < end; k += kBlockRows) {
    const std::int64_t last = std::min(end, k + kBlockRows), step = group > 0 ? group : last - k;
    const float* lanes = x.lanes(k, last, copy);
    for (std::int64_t at = 0; at < last - k; at += step) {
      const float* of_group = lanes + at * kPanelColumns;
      if (group > 0) {
        std::copy_n(of_group, kPanelColumns, largest);
        take_largest(of_group, step, largest);
        scales = scales_of<Encoder>(largest, x.count);
      }
      round_to_grid<Encoder>(of_group, step, scales, rounded + at * kPanelColumns);
    }
    target.write(rounded, k, last);
  }
}

template <class To>
void copy_rows(const WeightRows& x, std::int64_t begin, std::int64_t end,
               const Target<To>& target) {
  alignas(64) float copy[kBlockRows * kPanelColumns];
  alignas(64) To rounded[kBlockRows * kPanelColumns];
  for (std::int64_t k = begin; k < end; k += kBlockRows) {
    const std::int64_t last = std::min(end, k + kBlockRows);
    round_plainly(x.lanes(k, last, copy), (last - k) * kPanelColumns, rounded);
    target.write(rounded, k, last);
  }
}

// One task takes sixteen rows, or a part of their depth where a group is shorter.
template <class To, class Body>
void for_rows(const Arguments& args, bool takes_parts, const Body& body) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const std::int64_t rows = x.type->dim(-2), depth = x.type->dim(-1),
                     matrices = x.type->ndim() == 3 ? x.type->dim(0) : 1,
                     panels = ceil_div(rows, kPanelColumns),
                     task_rows = takes_parts ? kTaskRows : depth,
                     parts = ceil_div(depth, task_rows);
  const bool from_panels = x.type->layout != kRowMajor, to_panels = y.type->layout != kRowMajor,
             transposed = y.type->layout == panels_layout(true);
  const std::int64_t panel_elements = to_panels ? panel_shape(*y.type).panel_elements() : 0,
                     matrix_elements = to_panels ? panel_shape(*y.type).num_elements() : 0;
  args.launch.team->for_tasks(matrices * panels * parts, [&](std::int64_t task) {
    const std::int64_t panel = task / parts, matrix = panel / panels,
                       row = panel % panels * kPanelColumns, begin = task % parts * task_rows,
                       count = std::min(kPanelColumns, rows - row);
    const float* data = x.as<const float>();
    const WeightRows from = from_panels
                                ? WeightRows{data + panel * depth * kPanelColumns, 0, count}
                                : WeightRows{data + (matrix * rows + row) * depth, depth, count};
    To* to = y.as<To>();
    const Target<To> target{
        .panels = {.panel = transposed ? nullptr : to + panel * panel_elements,
                   .transposed = transposed ? to + matrix * matrix_elements : nullptr,
                   .panel_elements = panel_elements,
                   .first_column = row,
                   .columns = count},
        .rows = to_panels ? nullptr : to + (matrix * rows + row) * depth,
        .depth = depth};
    body(from, begin, std::min(depth, begin + task_rows), target);
  });
}

}  // namespace

void fake_quantize(const Arguments& args) {
  if (args.outputs[0].type->num_elements() == 0) return;
  const WeightGrid grid = *weight_grid_from_string(spec::get_string(*args.attributes, "grid"));
  const std::int64_t delay = spec::get_int_or(*args.attributes, "delay", 0);
  const bool waits = delay > 0 && *args.inputs[1].as<const std::int32_t>() < delay;
  with_float_type(args.outputs[0].type->dtype, [&]<class To>(To*) {
    if (waits)
      return for_rows<To>(args, true,
                          [](const WeightRows& x, std::int64_t begin, std::int64_t end,
                             const Target<To>& y) { copy_rows(x, begin, end, y); });
    with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
      for_rows<To>(
          args, grid.group > 0,
          [&](const WeightRows& x, std::int64_t begin, std::int64_t end, const Target<To>& y) {
            fake_quantize_rows<Encoder>(x, grid.group, begin, end, y);
          });
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
