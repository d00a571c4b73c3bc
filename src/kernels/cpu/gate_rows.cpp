// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/activation_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

void gate_rows(const Arguments& args) {
  const std::int64_t width = columns(args.inputs[0]);
  const float* gates = args.inputs[1].as<const float>();
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Floats gate = broadcast(gates[t]);
        const float share = times_sigmoid(gate, decay(gate), broadcast(1.0f))[0];
        const T* x = args.inputs[0].as<const T>() + t * width;
        T* y = args.outputs[0].as<T>() + t * width;
        for_lanes(0, width,
                  [&](std::int64_t i, int n) { store(y + i, share * load(x + i, n), n); });
      }
    };
    args.launch.team->for_range(rows(args.inputs[0]), row_grain(width), run);
  });
}

// dx = sigmoid(gate) · dy, which may overwrite dy, and dgate = sigmoid(gate) · sigmoid(−gate) · Σ
// dy · x.
void gate_rows_gradient(const Arguments& args) {
  const std::int64_t width = columns(args.inputs[0]);
  const float* gates = args.inputs[1].as<const float>();
  float* dgates = args.outputs[1].as<float>();
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Floats gate = broadcast(gates[t]);
        const Decay d = decay(gate);
        const float share = times_sigmoid(gate, d, broadcast(1.0f))[0];
        const T* x = args.inputs[0].as<const T>() + t * width;
        const T* dy = args.inputs[2].as<const T>() + t * width;
        T* dx = args.outputs[0].as<T>() + t * width;
        const double sum = sum_of_row(width, [&](std::int64_t i, int n, Floats before) {
          const Floats gradient = load(dy + i, n);
          store(dx + i, share * gradient, n);
          return madd(gradient, load(x + i, n), before);
        });
        const Floats product = broadcast(static_cast<float>(sum));
        dgates[t] = times_tail(gate, d, times_sigmoid(gate, d, product))[0];
      }
    };
    args.launch.team->for_range(rows(args.inputs[0]), row_grain(width), run);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
