// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// One task packs 16 rows: a panel, or the same depth of every transposed panel.
template <class To, class From>
void pack_as(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const PanelShape shape = panel_shape(*y.type);
  const bool transposed = y.type->layout == panels_layout(true);
  const std::int64_t rows = x.type->dim(-2), width = x.type->dim(-1);
  const std::int64_t blocks = ceil_div(rows, kPanelColumns);
  const std::int64_t matrices = x.type->ndim() == 3 ? x.type->dim(0) : 1;
  args.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    const std::int64_t matrix = task / blocks, begin = task % blocks * kPanelColumns;
    const std::int64_t end = std::min(rows, begin + kPanelColumns);
    const From* source = x.as<const From>() + (matrix * rows + begin) * width;
    To* panels = y.as<To>() + matrix * shape.num_elements();
    if (transposed)
      pack_depth(panels, shape, source, width, begin, end);
    else
      pack_panel(panels + begin / kPanelColumns * shape.panel_elements(), source, width,
                 end - begin, width);
  });
}

}  // namespace

void pack(const Arguments& args) {
  if (args.outputs[0].type->num_elements() == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class From>(From*) {
    with_float_type(args.outputs[0].type->dtype, [&]<class To>(To*) { pack_as<To, From>(args); });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
