// SPDX-License-Identifier: Apache-2.0
// Two vectors at a time, for loops that memory bounds: bf16 elements split into even and odd ones,
// which costs a shift and a mask where one vector would take a widening shuffle, and results that
// bypass the caches. f16 elements have the same order, so that loops take both together.
#pragma once
#include "kernels/cpu/call.h"
#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

inline constexpr int kPair = 2 * kLanes;

// kPair elements; which of them are `first` depends on the type in memory alone.
struct Pair {
  Floats first, second;
};

ANABATIC_INLINE Pair load_pair(const float* p) { return {load(p), load(p + kLanes)}; }
ANABATIC_INLINE Pair load_pair(const BFloat16* p) {
  Words both;
  std::memcpy(&both, p, sizeof both);
  return {reinterpret_cast<Floats>(both << 16), reinterpret_cast<Floats>(both & 0xFFFF0000u)};
}

ANABATIC_INLINE Pair load_pair(const Float16* p) {
  Words both;
  std::memcpy(&both, p, sizeof both);
  return {widen_halves(__builtin_convertvector(both & 0xFFFFu, Halves)),
          widen_halves(__builtin_convertvector(both >> 16, Halves))};
}

// kPair floats in the order that load_pair gives elements of type T.
template <class T>
ANABATIC_INLINE Pair load_pair_as(const float* p) {
  const Pair plain = load_pair(p);
  if constexpr (sizeof(T) == sizeof(float)) {
    return plain;
  } else {
    Ints even;
    for (int i = 0; i < kLanes; ++i) even[i] = 2 * i;
    return {__builtin_shuffle(plain.first, plain.second, even),
            __builtin_shuffle(plain.first, plain.second, even + 1)};
  }
}

// A NaN as store_pair keeps it.
ANABATIC_INLINE Floats plain_nan(Floats x) { return x == x ? x : broadcast(__builtin_nanf("")); }

// 4 · kLanes bytes at an address that is a multiple of that.
ANABATIC_INLINE void stream(void* p, Words x) {
#if ANABATIC_ISA_LANES == 16
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), reinterpret_cast<__m512i>(x));
#elif ANABATIC_ISA_LANES == 8
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(x));
#else
  std::memcpy(p, &x, sizeof x);
#endif
}
// To be called after the last stream of a range, before another thread may read.
ANABATIC_INLINE void end_stream() {
#if ANABATIC_ISA_LANES > 4
  _mm_sfence();
#endif
}

template <bool kStreams>
ANABATIC_INLINE void put_words(void* p, Words x) {
  if constexpr (kStreams)
    stream(p, x);
  else
    std::memcpy(p, &x, sizeof x);
}

// The upper half rounded to even, the lower half zeroes. For NaNs whose lower half is zero: those
// of arithmetic on bf16 operands. An f32 NaN of all ones would turn into a zero.
ANABATIC_INLINE Words rounded_words(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  return bits + ((bits >> 16) & 1u) + 0x7FFFu;
}
// As bf16 holds it; the same NaNs.
template <class T>
ANABATIC_INLINE Floats round_quickly(Floats x) {
  if constexpr (__is_same(T, BFloat16))
    return reinterpret_cast<Floats>(rounded_words(x) & 0xFFFF0000u);
  else
    return round_to<T>(x);
}

template <bool kStreams>
ANABATIC_INLINE void store_pair(float* p, Pair x) {
  put_words<kStreams>(p, reinterpret_cast<Words>(x.first));
  put_words<kStreams>(p + kLanes, reinterpret_cast<Words>(x.second));
}
// NaNs as in rounded_words.
template <bool kStreams>
ANABATIC_INLINE void store_pair(BFloat16* p, Pair x) {
  put_words<kStreams>(p, (rounded_words(x.first) >> 16) | (rounded_words(x.second) & 0xFFFF0000u));
}

template <bool kStreams>
ANABATIC_INLINE void store_pair(Float16* p, Pair x) {
  put_words<kStreams>(p, __builtin_convertvector(narrow_to_halves(x.first), Words) |
                             __builtin_convertvector(narrow_to_halves(x.second), Words) << 16);
}

// Whether results may bypass the caches: they are larger than what prepare_stream allows, lie over
// no operand, and every row of `row_bytes` begins where a vector may.
inline bool may_stream(const Arguments& args, std::int64_t row_bytes) {
  if (args.prepared == nullptr || row_bytes % 64 != 0) return false;
  for (const TensorView& output : args.outputs) {
    if (reinterpret_cast<std::uintptr_t>(output.data) % 64 != 0) return false;
    for (const TensorView& input : args.inputs)
      if (input.data == output.data) return false;
  }
  return true;
}

// Calls body(std::true_type or std::false_type): may_stream as a constant.
template <class Body>
ANABATIC_INLINE void with_stream(bool streams, Body&& body) {
  if (streams) {
    body(std::true_type{});
    end_stream();
  } else {
    body(std::false_type{});
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
