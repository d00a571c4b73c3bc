// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/grid_rows.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr std::int64_t kBlockRows = 128;  // of the depth: whole groups
constexpr std::int64_t kTaskRows = 512;   // likewise
static_assert(kBlockRows % kInt4Groups.back() == 0 && kTaskRows % kBlockRows == 0);

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
  if (group == 0) {
    alignas(64) Lanes largest;
    std::copy_n(x.lanes(begin, begin + 1, copy), kPanelColumns, largest);
    for (std::int64_t k = begin; k < end; k += kBlockRows) {
      const std::int64_t last = std::min(end, k + kBlockRows);
      take_largest(x.lanes(k, last, copy), last - k, largest);
    }
    scales = scales_of<Encoder>(largest, x.count);
  }
  for (std::int64_t k = begin; k < end; k += kBlockRows) {
    const std::int64_t last = std::min(end, k + kBlockRows);
    const float* lanes = x.lanes(k, last, copy);
    if (group > 0)
      round_groups<Encoder>(lanes, last - k, group, x.count, rounded);
    else
      round_to_grid<Encoder>(lanes, last - k, scales, rounded);
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
  const std::int32_t* step =
      args.inputs.size() > 1 ? args.inputs[1].as<const std::int32_t>() : nullptr;
  const std::optional<WeightGrid> grid = grid_at(*args.attributes, step);
  with_float_type(args.outputs[0].type->dtype, [&]<class To>(To*) {
    if (!grid)
      return for_rows<To>(args, true,
                          [](const WeightRows& x, std::int64_t begin, std::int64_t end,
                             const Target<To>& y) { copy_rows(x, begin, end, y); });
    with_grid_elements(grid->format, [&]<class Encoder>(Encoder) {
      for_rows<To>(
          args, grid->group > 0,
          [&](const WeightRows& x, std::int64_t begin, std::int64_t end, const Target<To>& y) {
            fake_quantize_rows<Encoder>(x, grid->group, begin, end, y);
          });
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
