// SPDX-License-Identifier: Apache-2.0
// Dropout by Philox, whose bits spec/dropout.h gives to elements. With AVX-512, 12 instructions a
// round make 64 words, the bits of 128 elements. A core of Zen 5 drops these in 20 ns, in bf16 and
// f32, with what it takes to read and write them; to copy them takes 15 ns in bf16 and 30 in f32.
#include "spec/dropout.h"

#include "base/philox.h"
#include "kernels/cpu/vector_pairs.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr int kRounds = 10;
constexpr int kParts = spec::kDropoutCalls / kLanes;  // vectors of counters of one block of columns
constexpr int kRuns = spec::kDropoutColumns / (2 * spec::kDropoutCalls);  // words of a call

// A word of a counter in the lower 32 bits of each lane; the upper ones mean nothing.
using Longs = std::uint64_t __attribute__((vector_size(4 * kLanes)));

ANABATIC_INLINE Longs multiply_low(Longs a, std::uint64_t b) {
#if ANABATIC_ISA_LANES == 16
  return reinterpret_cast<Longs>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(Longs{} + b)));
#elif ANABATIC_ISA_LANES == 8
  return reinterpret_cast<Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(Longs{} + b)));
#else
  return (a & 0xFFFFFFFFu) * b;
#endif
}

// A call's key of each round, its stream, threshold and scale.
struct Draws {
  std::uint64_t keys[kRounds][2];
  std::uint64_t site_low, site_high;
  std::uint32_t first_row, threshold;
  float scale;

  explicit Draws(const Arguments& args) {
    const auto* draws = args.inputs[1].as<const std::int32_t>();
    auto low = static_cast<std::uint32_t>(draws[spec::kDropoutKeyLow]),
         high = static_cast<std::uint32_t>(draws[spec::kDropoutKeyHigh]);
    for (auto& of_round : keys) {
      of_round[0] = low;
      of_round[1] = high;
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    const std::uint64_t stream = stream_of(spec::get_string(*args.attributes, "site"));
    site_low = stream & 0xFFFFFFFFu;
    site_high = stream >> 32;
    first_row = static_cast<std::uint32_t>(draws[spec::kDropoutRow]);
    const double rate = spec::get_double(*args.attributes, "rate");
    threshold = static_cast<std::uint32_t>(spec::dropout_threshold(rate));
    scale = spec::dropout_scale(rate);
  }
};

struct Counter {
  Longs words[kRuns];
};

ANABATIC_INLINE void philox_rounds(const Draws& draws, Counter& counter) {
  auto& [c0, c1, c2, c3] = counter.words;
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round) {
    const Longs product0 = multiply_low(c0, 0xD2511F53u), product1 = multiply_low(c2, 0xCD9E8D57u);
    c0 = (product1 >> 32) ^ c1 ^ (Longs{} + draws.keys[round][0]);
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ (Longs{} + draws.keys[round][1]);
    c3 = product0;
  }
}

// The words of kLanes counters from `group` on, word by word.
ANABATIC_INLINE void draw(const Draws& draws, std::uint32_t row, std::uint32_t group,
                          Words (&words)[kRuns]) {
  Longs even;
  for (int i = 0; i < kLanes / 2; ++i) even[i] = 2 * static_cast<std::uint64_t>(i);
  even += group;
  Counter first{{Longs{} + row, even, Longs{} + draws.site_low, Longs{} + draws.site_high}};
  Counter second = first;
  second.words[1] += 1;
  philox_rounds(draws, first);
  philox_rounds(draws, second);
  for (int i = 0; i < kRuns; ++i)
    words[i] = reinterpret_cast<Words>((first.words[i] & 0xFFFFFFFFu) | (second.words[i] << 32));
}

// kPair elements at x to y; a word has the bits of two neighbours.
template <bool kStreams>
ANABATIC_INLINE void keep(const float* x, Words words, const Draws& draws, float* y) {
  const Words even = words & 0xFFFFu, odd = words >> 16;
  Ints at;
  for (int i = 0; i < kLanes; ++i) at[i] = i / 2 + (i % 2) * kLanes;
  const auto kept = [&](Floats value, Words bits) {
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(value * draws.scale) &
                                    reinterpret_cast<Words>(bits >= draws.threshold));
  };
  const Pair pair = load_pair(x);
  store_pair<kStreams>(y, {kept(pair.first, __builtin_shuffle(even, odd, at)),
                           kept(pair.second, __builtin_shuffle(even, odd, at + kLanes / 2))});
}
// The bits lie as the elements do.
template <bool kStreams>
ANABATIC_INLINE void keep(const BFloat16* x, Words words, const Draws& draws, BFloat16* y) {
  using Elements = std::uint16_t __attribute__((vector_size(4 * kLanes)));
  const auto kept =
      reinterpret_cast<Elements>(words) >= static_cast<std::uint16_t>(draws.threshold);
  const Pair pair = load_pair(x);
  const Words first = rounded_words(pair.first * draws.scale) >> 16,
              second = rounded_words(pair.second * draws.scale) & 0xFFFF0000u;
  put_words<kStreams>(y, (first | second) & reinterpret_cast<Words>(kept));
}

template <bool kStreams, class T>
ANABATIC_INLINE void drop_block(const Draws& draws, const Words (&words)[kParts][kRuns], const T* x,
                                T* y) {
#pragma GCC unroll 4
  for (int run = 0; run < kRuns; ++run)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const int i = (run * kParts + part) * kPair;
      keep<kStreams>(x + i, words[part][run], draws, y + i);
    }
}

template <bool kStreams, class T>
void drop_row(const Draws& draws, std::uint32_t row, const T* x, std::int64_t width, T* y) {
  for (std::int64_t begin = 0; begin < width; begin += spec::kDropoutColumns) {
    const auto group =
        static_cast<std::uint32_t>(begin / spec::kDropoutColumns * spec::kDropoutCalls);
    Words words[kParts][kRuns];
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part)
      draw(draws, row, group + static_cast<std::uint32_t>(part * kLanes), words[part]);
    if (const std::int64_t left = width - begin; left >= spec::kDropoutColumns) {
      drop_block<kStreams>(draws, words, x + begin, y + begin);
    } else {
      T rest[spec::kDropoutColumns] = {};
      const auto bytes = static_cast<std::size_t>(left) * sizeof(T);
      std::memcpy(rest, x + begin, bytes);
      drop_block<false>(draws, words, rest, rest);
      std::memcpy(y + begin, rest, bytes);
    }
  }
}

}  // namespace

void dropout(const Arguments& args) {
  with_float_type(args.outputs[0].type->dtype, [&]<class T>(T*) {
    const Draws draws(args);
    const std::int64_t width = columns(args.inputs[0]);
    const T* x = args.inputs[0].as<const T>();
    T* y = args.outputs[0].as<T>();
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)});
    args.launch.team->for_range(
        rows(args.inputs[0]), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
          with_stream(streams, [&](auto constant) {
            for (std::int64_t t = begin; t < end; ++t)
              drop_row<constant.value>(draws, draws.first_row + static_cast<std::uint32_t>(t),
                                       x + t * width, width, y + t * width);
          });
        });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
