// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

void convert(BFloat16* to, const float* from, std::int64_t count) {
  round_weights(to, from, count);
}
void convert(float* to, const BFloat16* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

// One task packs 16 rows: a panel, or the same depth of every transposed panel. They are converted
// a few columns at a time.
template <class To, class From>
void pack_as(const Arguments& args) {
  constexpr std::int64_t kColumns = 512;
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const PanelShape shape = panel_shape(*y.type);
  const bool transposed = y.type->layout == panels_layout(true);
  const std::int64_t rows = x.type->dim(-2), width = x.type->dim(-1);
  const std::int64_t blocks = ceil_div(rows, kPanelColumns), panel = shape.panel_elements();
  const std::int64_t matrices = x.type->ndim() == 3 ? x.type->dim(0) : 1;
  args.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    alignas(64) To copy[sizeof(To) == sizeof(From) ? 1 : kPanelColumns * kColumns];
    const std::int64_t matrix = task / blocks, begin = task % blocks * kPanelColumns;
    const std::int64_t end = std::min(rows, begin + kPanelColumns);
    const From* source = x.as<const From>() + (matrix * rows + begin) * width;
    To* panels = y.as<To>() + matrix * shape.num_elements();
    for (std::int64_t k = 0; k < width; k += kColumns) {
      const std::int64_t count = std::min(kColumns, width - k);
      const To* from = copy;
      std::int64_t stride = kColumns;
      if constexpr (sizeof(To) == sizeof(From)) {
        from = source + k;
        stride = width;
      } else {
        for (std::int64_t row = 0; row < end - begin; ++row)
          convert(copy + row * kColumns, source + row * width + k, count);
      }
      if (transposed)
        pack_depth<false>(panels + k / kPanelColumns * panel, panel, count, from, stride, begin,
                          end);
      else
        pack_panel(panels + begin / kPanelColumns * panel + k * kPanelColumns, from, stride,
                   end - begin, count);
    }
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
