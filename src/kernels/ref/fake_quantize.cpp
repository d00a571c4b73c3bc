// SPDX-License-Identifier: Apache-2.0
// Values of a grid are defined by the encoders of files, whatever computes them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"
#include "tensor/grid_elements.h"

namespace anabatic::kernels::ref {

void fake_quantize(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const WeightGrid grid = *weight_grid_from_string(spec::get_string(*args.attributes, "grid"));
  const std::int64_t delay = spec::get_int_or(*args.attributes, "delay", 0), width = columns(x),
                     group = grid.group > 0 ? grid.group : width;
  std::memset(y.data, 0, static_cast<std::size_t>(y.type->num_bytes()));
  const auto element = [&](std::int64_t i) { return static_cast<float>(load(x, i)); };
  if (delay > 0 && load_index(args.inputs[1], 0) < delay) {
    for (std::int64_t i = 0; i < size(x); ++i)
      store(y, i,
            y.type->dtype == DType::kBFloat16 ? to_float(to_bfloat16_half_away(element(i)))
                                              : element(i));
    return;
  }
  with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
    for (std::int64_t first = 0; first < size(x); first += group) {
      float largest = element(first);
      for (std::int64_t i = first; i < first + group; ++i)
        if (std::abs(element(i)) > std::abs(largest)) largest = element(i);
      const GridScale scale = Encoder::scale_of(largest);
      for (std::int64_t i = first; i < first + group; ++i)
        store(y, i, Encoder::value_of(Encoder::element_of(element(i), scale.rule), scale.scale));
    }
  });
}

}  // namespace anabatic::kernels::ref
