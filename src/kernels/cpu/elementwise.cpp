// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/cpu/activation_math.h"
#include "kernels/cpu/activation_stage.h"
#include "kernels/cpu/codes_math.h"
#include "kernels/cpu/vector_pairs.h"
#include "kernels/cpu/vector_rows.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// body(i, count) over all elements, split among the threads.
template <class Body>
void for_elements(const Arguments& args, std::int64_t count, Body&& body) {
  args.launch.team->for_range(count, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(begin, end, body);
  });
}

// As for_elements of outputs of T, whole runs of kStep elements by pairs(i, streams) and the rest
// by lanes(i, count).
template <class T, int kStep = kPair, class Pairs, class Lanes>
void for_pairs(const Arguments& args, Pairs&& pairs, Lanes&& lanes) {
  const bool streams = may_stream(args, kElementGrain * std::int64_t{sizeof(T)});
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t whole = begin + (end - begin) / kStep * kStep;
    with_stream(streams, [&](auto constant) {
      for (std::int64_t i = begin; i < whole; i += kStep) pairs(i, constant);
    });
    for_lanes(whole, end, lanes);
  };
  args.launch.team->for_range(size(args.outputs[0]), kElementGrain, run);
}

ANABATIC_INLINE Pair operator+(const Pair& a, const Pair& b) {
  return {a.first + b.first, a.second + b.second};
}

// Rows times their router weights, by the stage that runs after products: equal bits.
void weighted_activation(const Arguments& args, const spec::Activation& activation) {
  const auto next = static_cast<std::size_t>(num_operands(activation));
  const TensorView& y = args.outputs[0];
  const std::int64_t width = columns(y), row_bytes = width * size_bytes(y.type->dtype);
  args.launch.team->for_range(
      y.type->dim(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
        kActivationStage.forward(
            {.activation = activation,
             .dtype = y.type->dtype,
             .rows = end - begin,
             .columns = width,
             .gate = args.inputs[0].data + begin * row_bytes,
             .up = next > 1 ? args.inputs[1].data + begin * row_bytes : nullptr,
             .operand_stride = width,
             .h = y.data + begin * row_bytes,
             .h_stride = width,
             .row_weights = {.weights = args.inputs[next + 1].as<const float>(),
                             .slots = args.inputs[next].as<const std::int32_t>() + begin}});
      });
}

// body(row, block, its first column, its columns) over all blocks of rows split among threads.
template <class Body>
void for_blocks(const Arguments& args, const TensorView& x, std::int64_t block, Body&& body) {
  const std::int64_t width = columns(x);
  args.launch.team->for_range(rows(x), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t b = 0, first = 0; first < width; ++b, first += block)
        body(row, b, first, width - first < block ? width - first : block);
  });
}

template <class T, class A>
void activate(const Arguments& args, const A& activation) {
  const T *gate = args.inputs[0].as<const T>(), *up = nullptr;
  if (A::kIsGated) up = args.inputs[1].as<const T>();
  T* y = args.outputs[0].as<T>();
  for_pairs<T>(
      args,
      [=](std::int64_t i, auto streams) {
        const Pair g = load_pair(gate + i);
        const Pair u = A::kIsGated ? load_pair(up + i) : Pair{};
        store_pair<streams.value>(
            y + i, {activation.value(g.first, u.first), activation.value(g.second, u.second)});
      },
      [=](std::int64_t i, int n) {
        const Floats u = A::kIsGated ? load(up + i, n) : Floats{};
        store(y + i, activation.value(load(gate + i, n), u), n);
      });
}

template <class T, class A>
void activate_gradient(const Arguments& args, const A& activation) {
  const T *gate = args.inputs[0].as<const T>(), *dy = args.inputs.back().as<const T>();
  const T* up = A::kIsGated ? args.inputs[1].as<const T>() : nullptr;
  T *dgate = args.outputs[0].as<T>(), *dup = A::kIsGated ? args.outputs[1].as<T>() : nullptr;
  // Whole cache lines of each output: streams that take turns within a line are slow.
  constexpr int kStep = sizeof(T) == sizeof(float) ? kPair : 2 * kPair;
  for_pairs<T, kStep>(
      args,
      [=](std::int64_t begin, auto streams) {
        Pair to_gate[kStep / kPair], to_up[kStep / kPair];
#pragma GCC unroll 2
        for (int k = 0; k < kStep / kPair; ++k) {
          const std::int64_t i = begin + k * kPair;
          const Pair g = load_pair(gate + i), d = load_pair(dy + i);
          const Pair u = A::kIsGated ? load_pair(up + i) : Pair{};
          const ActivationGradient first = activation.gradient(g.first, u.first, d.first).gradient,
                                   second =
                                       activation.gradient(g.second, u.second, d.second).gradient;
          to_gate[k] = {first.gate, second.gate};
          to_up[k] = {first.up, second.up};
        }
#pragma GCC unroll 2
        for (int k = 0; k < kStep / kPair; ++k)
          store_pair<streams.value>(dgate + begin + k * kPair, to_gate[k]);
        if (!A::kIsGated) return;
#pragma GCC unroll 2
        for (int k = 0; k < kStep / kPair; ++k)
          store_pair<streams.value>(dup + begin + k * kPair, to_up[k]);
      },
      [=](std::int64_t i, int n) {
        const Floats u = A::kIsGated ? load(up + i, n) : Floats{};
        const ActivationGradient d =
            activation.gradient(load(gate + i, n), u, load(dy + i, n)).gradient;
        store(dgate + i, d.gate, n);
        if (A::kIsGated) store(dup + i, d.up, n);
      });
}

}  // namespace

void add(const Arguments& args) {
  with_any_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *a = args.inputs[0].as<const T>(), *b = args.inputs[1].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_pairs<T>(
        args,
        [=](std::int64_t i, auto streams) {
          store_pair<streams.value>(y + i, load_pair(a + i) + load_pair(b + i));
        },
        [=](std::int64_t i, int n) { store(y + i, load(a + i, n) + load(b + i, n), n); });
  });
}

void sum_leaves(const Arguments& args) {
  float* y = args.outputs[0].as<float>();
  for_elements(args, stored_elements(*args.outputs[0].type), [&](std::int64_t i, int n) {
    Floats sum = load(args.inputs[0].as<const float>() + i, n);
    for (const TensorView& level : args.inputs.subspan(1))
      sum += load(level.as<const float>() + i, n);
    store(y + i, sum, n);
  });
}

void cast(const Arguments& args) {
  const TensorView &from = args.inputs[0], &to = args.outputs[0];
  const bool half_away = spec::get_string(*args.attributes, "rounding") == "half_away";
  with_any_float_type(from.type->dtype, [&]<class X>(X*) {
    const X* x = from.as<const X>();
    if (half_away && to.type->dtype == DType::kBFloat16)
      return for_elements(args, size(to), [=, y = to.as<BFloat16>()](std::int64_t i, int n) {
        store_half_away(y + i, load(x + i, n), n);
      });
    with_any_float_type(to.type->dtype, [&]<class Y>(Y*) {
      Y* y = to.as<Y>();
      for_elements(args, size(to), [=](std::int64_t i, int n) { store(y + i, load(x + i, n), n); });
    });
  });
}

void clamp(const Arguments& args) {
  const Floats limit = broadcast(static_cast<float>(spec::get_double(*args.attributes, "limit")));
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T* x = args.inputs[0].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_elements(args, size(args.outputs[0]), [=](std::int64_t i, int n) {
      const Floats value = load(x + i, n), low = value < -limit ? -limit : value;
      store(y + i, low > limit ? limit : low, n);
    });
  });
}

void clamp_gradient(const Arguments& args) {
  const Floats limit = broadcast(static_cast<float>(spec::get_double(*args.attributes, "limit")));
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *x = args.inputs[0].as<const T>(), *dy = args.inputs[1].as<const T>();
    T* dx = args.outputs[0].as<T>();
    for_elements(args, size(args.outputs[0]), [=](std::int64_t i, int n) {
      const Floats value = load(x + i, n), zero{};
      const Floats above = value >= -limit ? load(dy + i, n) : zero;
      store(dx + i, value <= limit ? above : zero, n);
    });
  });
}

void dequantize(const Arguments& args) {
  const TensorView& to = args.outputs[0];
  const TensorView& from = args.inputs[0];
  const std::int64_t width = columns(to), block = from.type->blocks->columns,
                     blocks = scale_columns(*from.type);
  const auto* codes = from.as<const std::int8_t>();
  const auto* scales = from.scales<const BFloat16>();
  with_float_type(to.type->dtype, [&]<class T>(T*) {
    T* x = to.as<T>();
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)}) &&
                         block % (64 / std::int64_t{sizeof(T)}) == 0;
    with_stream(streams, [&](auto constant) {
      for_blocks(args, to, block,
                 [=](std::int64_t row, std::int64_t b, std::int64_t first, std::int64_t count) {
                   const std::int64_t at = row * width + first;
                   dequantize_block<decltype(constant)::value>(
                       codes + at, count, to_float(scales[row * blocks + b]), x + at);
                 });
    });
  });
}

void quantize(const Arguments& args) {
  const TensorView& from = args.inputs[0];
  const TensorView& to = args.outputs[0];
  const std::int64_t width = columns(from), block = to.type->blocks->columns,
                     blocks = scale_columns(*to.type);
  auto* codes = to.as<std::int8_t>();
  auto* scales = to.scales<BFloat16>();
  with_float_type(from.type->dtype, [&]<class T>(T*) {
    const T* x = from.as<const T>();
    for_blocks(args, from, block,
               [=](std::int64_t row, std::int64_t b, std::int64_t first, std::int64_t count) {
                 const std::int64_t at = row * width + first;
                 scales[row * blocks + b] = quantize_block(x + at, count, codes + at);
               });
  });
}

namespace {

void multiply(const Arguments& args, float factor) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T* x = args.inputs[0].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_elements(args, size(args.outputs[0]),
                 [=](std::int64_t i, int n) { store(y + i, factor * load(x + i, n), n); });
  });
}

}  // namespace

void scale(const Arguments& args) {
  multiply(args, static_cast<float>(spec::get_double(*args.attributes, "factor")));
}

void scale_by(const Arguments& args) { multiply(args, *args.inputs[1].as<const float>()); }

void activation(const Arguments& args) {
  const spec::Activation activation = spec::activation_of(*args.attributes);
  if (args.inputs.size() > static_cast<std::size_t>(num_operands(activation)))
    return weighted_activation(args, activation);
  with_activation(activation, [&](const auto& form) {
    with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) { activate<T>(args, form); });
  });
}

void activation_gradient(const Arguments& args) {
  with_activation(spec::activation_of(*args.attributes), [&](const auto& form) {
    with_float_type(args.outputs[0].type->dtype,
                    [&]<class T>(T*) { activate_gradient<T>(args, form); });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
