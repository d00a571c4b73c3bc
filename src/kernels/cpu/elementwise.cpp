// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <type_traits>

#include "kernels/cpu/swiglu_math.h"
#include "kernels/cpu/swiglu_stage.h"
#include "kernels/cpu/vector_pairs.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// body(i, count) over all elements, split among the threads.
template <class Body>
void for_elements(const Arguments& args, std::int64_t count, Body&& body) {
  args.team->for_range(count, kElementGrain,
                       [&](std::int64_t begin, std::int64_t end) { for_lanes(begin, end, body); });
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
  args.team->for_range(size(args.outputs[0]), kElementGrain, run);
}

ANABATIC_INLINE Pair operator+(const Pair& a, const Pair& b) {
  return {a.first + b.first, a.second + b.second};
}

// Rows times their router weights, by the stage that products have behind them: equal bits.
void weighted_swiglu(const Arguments& args) {
  const TensorView& y = args.outputs[0];
  const std::int64_t width = columns(y), row_bytes = width * size_bytes(y.type->dtype);
  args.team->for_range(y.type->dim(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    kSwigluStage.forward(
        {.dtype = y.type->dtype,
         .rows = end - begin,
         .columns = width,
         .gate = args.inputs[0].data + begin * row_bytes,
         .up = args.inputs[1].data + begin * row_bytes,
         .operand_stride = width,
         .h = y.data + begin * row_bytes,
         .h_stride = width,
         .row_weights = {.weights = args.inputs[3].as<const float>(),
                         .slots = args.inputs[2].as<const std::int32_t>() + begin}});
  });
}

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));
using Codes = std::int8_t __attribute__((vector_size(kLanes)));

constexpr float kSmallest = 0x1p-100f;  // a block whose largest element is below is all zeroes
constexpr std::int32_t kInfinity = 0x7F800000;
// Adding 1.5 · 2^23 rounds to a whole number, to even, which the lowest bits then hold.
constexpr float kRounder = 12582912.0f;

// A block's scale is NaN where an element is not finite: every element of it comes back as NaN.
struct BlockScale {
  BFloat16 scale;
  float inverse;
  std::uint32_t mask;  // all ones where the block is finite
};

// `largest`: bits without the sign, whose order as integers puts NaN above infinity above the rest.
ANABATIC_INLINE BlockScale scale_of(std::int32_t largest) {
  if (largest >= kInfinity) return {to_bfloat16(__builtin_nanf("")), 0.0f, 0u};
  const auto value = std::bit_cast<float>(largest);
  if (value < kSmallest) return {to_bfloat16(0.0f), 0.0f, ~0u};
  const BFloat16 scale = to_bfloat16_up(value / 127.0f);
  return {scale, 1.0f / to_float(scale), ~0u};
}

ANABATIC_INLINE Ints magnitude(Floats x) { return reinterpret_cast<Ints>(x) & 0x7FFFFFFF; }
ANABATIC_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
template <int kHalf = kLanes / 2>
ANABATIC_INLINE std::int32_t largest_lane(Ints x) {
  x = larger(x, reinterpret_cast<Ints>(exchange_lanes<kHalf>(reinterpret_cast<Floats>(x))));
  if constexpr (kHalf > 1) return largest_lane<kHalf / 2>(x);
  return x[0];
}

// The codes as the lowest bytes of words.
ANABATIC_INLINE Words codes_of(Floats x, const BlockScale& block) {
  const Floats held = reinterpret_cast<Floats>(reinterpret_cast<Words>(x) & block.mask);
  return reinterpret_cast<Words>(held * block.inverse + kRounder) & 0xFFu;
}

ANABATIC_INLINE void store_codes(std::int8_t* p, const float*, const Pair& x,
                                 const BlockScale& block) {
  const Words first = codes_of(x.first, block), second = codes_of(x.second, block);
#if ANABATIC_ISA_LANES == 8  // g++ 12 narrows byte by byte
  const auto halves = [](Words words) {
    const auto all = reinterpret_cast<__m256i>(words);
    return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  };
  const __m128i bytes = _mm_packus_epi16(halves(first), halves(second));
  std::memcpy(p, &bytes, sizeof bytes);
#else
  const Bytes low = __builtin_convertvector(first, Bytes),
              high = __builtin_convertvector(second, Bytes);
  std::memcpy(p, &low, sizeof low);
  std::memcpy(p + kLanes, &high, sizeof high);
#endif
}
// Even and odd elements lie side by side again.
ANABATIC_INLINE void store_codes(std::int8_t* p, const BFloat16*, const Pair& x,
                                 const BlockScale& block) {
  const Words both = codes_of(x.first, block) | (codes_of(x.second, block) << 8);
  const Halves halves = __builtin_convertvector(both, Halves);
  std::memcpy(p, &halves, sizeof halves);
}

template <class T>
ANABATIC_INLINE BFloat16 quantize_block(const T* x, std::int64_t count, std::int8_t* codes) {
  const std::int64_t whole = count / kPair * kPair;
  Ints largest{};
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair pair = load_pair(x + i);
    largest = larger(largest, larger(magnitude(pair.first), magnitude(pair.second)));
  }
  for_lanes(whole, count,
            [&](std::int64_t i, int n) { largest = larger(largest, magnitude(load(x + i, n))); });
  const BlockScale block = scale_of(largest_lane(largest));
  for (std::int64_t i = 0; i < whole; i += kPair)
    store_codes(codes + i, x, load_pair(x + i), block);
  for_lanes(whole, count, [&](std::int64_t i, int n) {
    const Words words = codes_of(load(x + i, n), block);
    for (int k = 0; k < n; ++k) codes[i + k] = static_cast<std::int8_t>(words[k]);
  });
  return block.scale;
}

ANABATIC_INLINE Floats load_codes(const std::int8_t* p, int count) {
  Codes codes{};
  for (int i = 0; i < count; ++i) codes[i] = p[i];
  return __builtin_convertvector(__builtin_convertvector(codes, Ints), Floats);
}
// In the order that load_pair gives elements of the type.
ANABATIC_INLINE Pair load_code_pair(const std::int8_t* p, const float*) {
#if ANABATIC_ISA_LANES == 8  // g++ 12 widens by halves
  const auto widened = [](const std::int8_t* q) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))));
  };
  return {widened(p), widened(p + kLanes)};
#else
  return {load_codes(p, kLanes), load_codes(p + kLanes, kLanes)};
#endif
}
ANABATIC_INLINE Pair load_code_pair(const std::int8_t* p, const BFloat16*) {
  Halves halves;
  std::memcpy(&halves, p, sizeof halves);
#if ANABATIC_ISA_LANES == 8
  const auto both =
      reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
#else
  const Words both = __builtin_convertvector(halves, Words);
#endif
  // Shifts of signed lanes keep the sign.
  return {__builtin_convertvector(reinterpret_cast<Ints>(both << 24) >> 24, Floats),
          __builtin_convertvector(reinterpret_cast<Ints>(both << 16) >> 24, Floats)};
}

template <bool kStreams, class T>
ANABATIC_INLINE void dequantize_block(const std::int8_t* codes, std::int64_t count, float scale,
                                      T* x) {
  const std::int64_t whole = count / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair pair = load_code_pair(codes + i, x);
    store_pair<kStreams>(x + i, {pair.first * scale, pair.second * scale});
  }
  for_lanes(whole, count,
            [&](std::int64_t i, int n) { store(x + i, load_codes(codes + i, n) * scale, n); });
}

// body(row, first column, columns of the block) over all blocks of rows split among threads.
template <class Body>
void for_blocks(const Arguments& args, const TensorView& x, Body&& body) {
  const std::int64_t width = columns(x), block = spec::get_int(*args.attributes, "block");
  args.team->for_range(rows(x), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t first = 0; first < width; first += block)
        body(row, first, width - first < block ? width - first : block);
  });
}

}  // namespace

void add(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
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

void dequantize(const Arguments& args) {
  const TensorView& to = args.outputs[0];
  const std::int64_t width = columns(to), blocks = columns(args.inputs[1]),
                     block = spec::get_int(*args.attributes, "block");
  const auto* codes = args.inputs[0].as<const std::int8_t>();
  const auto* scales = args.inputs[1].as<const BFloat16>();
  with_float_type(to.type->dtype, [&]<class T>(T*) {
    T* x = to.as<T>();
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)}) &&
                         block % (64 / std::int64_t{sizeof(T)}) == 0;
    with_stream(streams, [&](auto constant) {
      for_blocks(args, to, [=](std::int64_t row, std::int64_t first, std::int64_t count) {
        const std::int64_t at = row * width + first;
        dequantize_block<decltype(constant)::value>(
            codes + at, count, to_float(scales[row * blocks + first / block]), x + at);
      });
    });
  });
}

void quantize(const Arguments& args) {
  const TensorView& from = args.inputs[0];
  const std::int64_t width = columns(from), blocks = columns(args.outputs[1]),
                     block = spec::get_int(*args.attributes, "block");
  auto* codes = args.outputs[0].as<std::int8_t>();
  auto* scales = args.outputs[1].as<BFloat16>();
  with_float_type(from.type->dtype, [&]<class T>(T*) {
    const T* x = from.as<const T>();
    for_blocks(args, from, [=](std::int64_t row, std::int64_t first, std::int64_t count) {
      const std::int64_t at = row * width + first;
      scales[row * blocks + first / block] = quantize_block(x + at, count, codes + at);
    });
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
  if (args.inputs.size() > 2) return weighted_swiglu(args);
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *gate = args.inputs[0].as<const T>(), *up = args.inputs[1].as<const T>();
    T* y = args.outputs[0].as<T>();
    for_pairs<T>(
        args,
        [=](std::int64_t i, auto streams) {
          const Pair g = load_pair(gate + i), u = load_pair(up + i);
          store_pair<streams.value>(y + i,
                                    {swiglu_of(g.first, u.first), swiglu_of(g.second, u.second)});
        },
        [=](std::int64_t i, int n) {
          store(y + i, swiglu_of(load(gate + i, n), load(up + i, n)), n);
        });
  });
}

void swiglu_gradient(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const T *gate = args.inputs[0].as<const T>(), *up = args.inputs[1].as<const T>(),
            *dy = args.inputs[2].as<const T>();
    T *dgate = args.outputs[0].as<T>(), *dup = args.outputs[1].as<T>();
    // Whole cache lines of each output: streams that take turns within a line are slow.
    constexpr int kStep = sizeof(T) == sizeof(float) ? kPair : 2 * kPair;
    for_pairs<T, kStep>(
        args,
        [=](std::int64_t begin, auto streams) {
          Pair to_gate[kStep / kPair], to_up[kStep / kPair];
#pragma GCC unroll 2
          for (int k = 0; k < kStep / kPair; ++k) {
            const std::int64_t i = begin + k * kPair;
            const Pair g = load_pair(gate + i), u = load_pair(up + i), d = load_pair(dy + i);
            const SwigluGradient first =
                                     swiglu_gradient_of(g.first, u.first, d.first, decay(g.first)),
                                 second = swiglu_gradient_of(g.second, u.second, d.second,
                                                             decay(g.second));
            to_gate[k] = {first.gate, second.gate};
            to_up[k] = {first.up, second.up};
          }
#pragma GCC unroll 2
          for (int k = 0; k < kStep / kPair; ++k)
            store_pair<streams.value>(dgate + begin + k * kPair, to_gate[k]);
#pragma GCC unroll 2
          for (int k = 0; k < kStep / kPair; ++k)
            store_pair<streams.value>(dup + begin + k * kPair, to_up[k]);
        },
        [=](std::int64_t i, int n) {
          const Floats g = load(gate + i, n);
          const SwigluGradient d =
              swiglu_gradient_of(g, load(up + i, n), load(dy + i, n), decay(g));
          store(dgate + i, d.gate, n);
          store(dup + i, d.up, n);
        });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
