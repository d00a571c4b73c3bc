// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

ANABATIC_INLINE Doubles to_doubles(const float* p) {
  FewFloats x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Doubles);
}

// Of the elements of one block, in double.
template <class T>
double sum_squares_of(const T* x, std::int64_t count) {
  constexpr int kHalf = kLanes / 2;
  Doubles sums[2] = {};
  for_lanes(0, count, [&](std::int64_t i, int n) {
    float lanes[kLanes];
    store(lanes, load(x + i, n));
    for (int half = 0; half < 2; ++half) {
      const Doubles value = to_doubles(lanes + half * kHalf);
      sums[half] += value * value;
    }
  });
  return sum_lanes(sums[0] + sums[1]);
}

}  // namespace

// Workspace: double of each block.
void sum_squares(const Arguments& args) {
  const std::int64_t count = size(args.inputs[0]), num_blocks = ceil_div(count, kElementBlock);
  auto* partials = reinterpret_cast<double*>(args.workspace);
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const T* x = args.inputs[0].as<const T>();
    args.team->for_range(num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block)
        partials[block] = sum_squares_of(x + block * kElementBlock,
                                         std::min(kElementBlock, count - block * kElementBlock));
    });
  });
  double sum = 0;
  for (std::int64_t block = 0; block < num_blocks; ++block) sum += partials[block];
  *args.outputs[0].as<double>() = sum;
}

// torch.optim.AdamW: decay first, then the step with bias-corrected moments. A clip factor that is
// not finite changes nothing.
void adamw(const Arguments& args) {
  const float* in[4];
  float* out[3];
  for (int i = 0; i < 4; ++i) in[i] = args.inputs[static_cast<std::size_t>(i)].as<const float>();
  for (int i = 0; i < 3; ++i) out[i] = args.outputs[static_cast<std::size_t>(i)].as<float>();
  const float clip = *args.inputs[4].as<const float>();
  const double learning_rate = *args.inputs[5].as<const float>();
  const double step = *args.inputs[6].as<const std::int32_t>();
  const double beta1 = spec::get_double(*args.attributes, "beta1");
  const double beta2 = spec::get_double(*args.attributes, "beta2");
  const double decay = spec::get_double(*args.attributes, "weight_decay");
  const auto epsilon = static_cast<float>(spec::get_double(*args.attributes, "epsilon"));
  const auto keep = static_cast<float>(1.0 - learning_rate * decay);
  const auto rate = static_cast<float>(learning_rate / (1.0 - std::pow(beta1, step)));
  const auto root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step)));
  const auto blend1 = static_cast<float>(1.0 - beta1), keep2 = static_cast<float>(beta2),
             blend2 = static_cast<float>(1.0 - beta2);
  const bool finite = std::isfinite(clip);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for_lanes(begin, end, [&](std::int64_t i, int n) {
      Floats p = load(in[0] + i, n), m = load(in[2] + i, n), v = load(in[3] + i, n);
      if (finite) {
        const Floats g = clip * load(in[1] + i, n);
        m += blend1 * (g - m);
        v = keep2 * v + blend2 * g * g;
        p = keep * p - rate * m / (square_root(v) * root + epsilon);
      }
      store(out[0] + i, p, n);
      store(out[1] + i, m, n);
      store(out[2] + i, v, n);
    });
  };
  args.team->for_range(size(args.inputs[0]), kElementGrain, run);
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
