// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// May write over x: both elements of a pair are read before either is written.
void rope(const Arguments& args) {
  const std::int64_t head_dim = spec::get_int(*args.attributes, "head_dim");
  const std::int64_t width = columns(args.inputs[0]), rotary = columns(args.inputs[1]),
                     half = rotary / 2;
  const float sign = spec::get_bool_or(*args.attributes, "inverse", false) ? -1.0f : 1.0f;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const float *cosines = args.inputs[1].as<const float>() + t * rotary,
                    *sines = cosines + half;
        for (std::int64_t head = t * width; head < (t + 1) * width; head += head_dim) {
          const T* x = args.inputs[0].as<const T>() + head;
          T* y = args.outputs[0].as<T>() + head;
          for_lanes(0, half, [&](std::int64_t i, int n) {
            const Floats c = load(cosines + i, n), s = sign * load(sines + i, n);
            const Floats first = load(x + i, n), second = load(x + half + i, n);
            store(y + i, first * c - second * s, n);
            store(y + half + i, second * c + first * s, n);
          });
          for (std::int64_t i = rotary; x != y && i < head_dim; ++i) y[i] = x[i];
        }
      }
    };
    args.team->for_range(rows(args.inputs[0]), row_grain(width), run);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
