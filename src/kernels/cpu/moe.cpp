// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// y[t] = Σⱼ factor(t·k + j) · x[slots[t·k + j]], ascending j.
template <class T, class Factor>
void sum_slots(const Arguments& args, const TensorView& x, const std::int32_t* slots,
               std::int64_t top_k, Factor&& factor) {
  const std::int64_t width = columns(x), num_rows = rows(args.outputs[0]);
  args.team->for_range(
      num_rows, row_grain(width * top_k), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t)
          for_lanes(0, width, [&](std::int64_t i, int n) {
            Floats sum{};
            for (std::int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot)
              sum += factor(slot) * load(x.as<const T>() + slots[slot] * width + i, n);
            store(args.outputs[0].as<T>() + t * width + i, sum, n);
          });
      });
}

}  // namespace

void permute_gradient(const Arguments& args) {
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_slots<T>(args, args.inputs[0], args.inputs[1].as<const std::int32_t>(), top_k,
                 [](std::int64_t) { return 1.0f; });
  });
}

void unpermute(const Arguments& args) {
  const float* weights = args.inputs[1].as<const float>();
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_slots<T>(args, args.inputs[0], args.inputs[2].as<const std::int32_t>(),
                 columns(args.inputs[1]), [=](std::int64_t slot) { return weights[slot]; });
  });
}

void unpermute_gradient(const Arguments& args) {
  const float* weights = args.inputs[2].as<const float>();
  const std::int32_t* slots = args.inputs[3].as<const std::int32_t>();
  const std::int64_t width = columns(args.inputs[1]), top_k = columns(args.inputs[2]);
  with_float_type(args.inputs[1].type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        const T* dout = args.inputs[0].as<const T>() + slot / top_k * width;
        const T* y = args.inputs[1].as<const T>() + slots[slot] * width;
        T* dy = args.outputs[0].as<T>() + slots[slot] * width;
        Floats sum{};
        for_lanes(0, width, [&](std::int64_t i, int n) {
          const Floats d = load(dout + i, n);
          sum = madd(d, load(y + i, n), sum);
          store(dy + i, weights[slot] * d, n);
        });
        args.outputs[1].as<float>()[slot] = sum_lanes(sum);
      }
    };
    args.team->for_range(size(args.inputs[3]), row_grain(width), run);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
