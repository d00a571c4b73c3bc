// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// body(i, count) over all elements, split among the threads.
template <class Body>
void for_elements(const Arguments& args, std::int64_t count, Body&& body) {
  args.team->for_range(count, kElementGrain,
                       [&](std::int64_t begin, std::int64_t end) { for_lanes(begin, end, body); });
}

}  // namespace

void add(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *a = args.inputs[0].as<const T>(), *b = args.inputs[1].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_elements(args, size(args.outputs[0]),
                 [=](std::int64_t i, int n) { store(y + i, load(a + i, n) + load(b + i, n), n); });
  });
}

void cast(const Arguments& args) {
  const TensorView &from = args.inputs[0], &to = args.outputs[0];
  const bool half_away = spec::get_string(*args.attributes, "rounding") == "half_away";
  with_float_type(from.type->dtype, [&]<class X>(X*) {
    const X* x = from.as<const X>();
    if (to.type->dtype == DType::kFloat32) {
      float* y = to.as<float>();
      for_elements(args, size(to), [=](std::int64_t i, int n) { store(y + i, load(x + i, n), n); });
      return;
    }
    BFloat16* y = to.as<BFloat16>();
    if (half_away)
      for_elements(args, size(to),
                   [=](std::int64_t i, int n) { store_half_away(y + i, load(x + i, n), n); });
    else
      for_elements(args, size(to), [=](std::int64_t i, int n) { store(y + i, load(x + i, n), n); });
  });
}

void scale(const Arguments& args) {
  const auto factor = static_cast<float>(spec::get_double(*args.attributes, "factor"));
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T* x = args.inputs[0].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_elements(args, size(args.outputs[0]),
                 [=](std::int64_t i, int n) { store(y + i, factor * load(x + i, n), n); });
  });
}

void swiglu(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *gate = args.inputs[0].as<const T>(), *up = args.inputs[1].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_elements(args, size(args.outputs[0]), [=](std::int64_t i, int n) {
      const Floats g = load(gate + i, n);
      const Sigmoid s = sigmoid(g);
      store(y + i, g * load(up + i, n) * s.outer * s.inner, n);
    });
  });
}

void swiglu_gradient(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *gate = args.inputs[0].as<const T>(), *up = args.inputs[1].as<const T>(),
            *dy = args.inputs[2].as<const T>();
    T *dgate = args.outputs[0].as<T>(), *dup = args.outputs[1].as<T>();
    for_elements(args, size(args.outputs[0]), [=](std::int64_t i, int n) {
      const Floats g = load(gate + i, n), u = load(up + i, n), d = load(dy + i, n);
      const Sigmoid s = sigmoid(g);
      const Floats slope = 1.0f + g * (1.0f - s.outer * s.inner);
      store(dgate + i, d * u * slope * s.outer * s.inner, n);
      store(dup + i, d * g * s.outer * s.inner, n);
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
