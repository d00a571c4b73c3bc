// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// Each thread owns a stripe of columns and goes through the tokens in ascending order. With `=`,
// rows that tokens name start at zero; all others, and the padding row, stay as they are.
void embedding_weight_gradient(const Arguments& args) {
  const std::int32_t* indices = args.inputs[0].as<const std::int32_t>();
  const std::int64_t num_tokens = rows(args.inputs[0]), width = columns(args.inputs[1]),
                     num_rows = rows(args.outputs[0]);
  const std::int64_t padding = spec::get_int_or(*args.attributes, "padding", -1);
  for (std::int64_t t = 0; t < num_tokens; ++t)
    require_index("embedding_weight_gradient", indices[t], num_rows);
  float* gradient = args.outputs[0].as<float>();
  with_float_type(args.inputs[1].type->dtype, [&]<class T>(T*) {
    const T* dy = args.inputs[1].as<const T>();
    args.team->for_range(width, 4 * kLanes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; !adds(args, 0) && t < num_tokens; ++t) {
        if (indices[t] == padding) continue;
        for_lanes(begin, end, [&](std::int64_t i, int n) {
          store(gradient + indices[t] * width + i, Floats{}, n);
        });
      }
      for (std::int64_t t = 0; t < num_tokens; ++t) {
        if (indices[t] == padding) continue;
        float* row = gradient + indices[t] * width;
        for_lanes(begin, end, [&](std::int64_t i, int n) {
          store(row + i, load(row + i, n) + load(dy + t * width + i, n), n);
        });
      }
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
