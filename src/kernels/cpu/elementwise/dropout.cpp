// SPDX-License-Identifier: Apache-2.0
// Dropout by Philox, whose bits spec/dropout.h gives to elements. 12 instructions a round make 64
// words with AVX-512, bits of 128 elements: less than what memory takes for these.
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

ANABATIC_INLINE Floats keep(Floats x, Words bits, const Draws& draws) {
  const Words kept = reinterpret_cast<Words>(bits >= draws.threshold);
  return reinterpret_cast<Floats>(reinterpret_cast<Words>(x * draws.scale) & kept);
}

// kPair elements in the order of load_pair; a word has the bits of two neighbours.
template <class T>
ANABATIC_INLINE Pair keep_pair(Pair x, Words words, const Draws& draws) {
  const Words even = words & 0xFFFFu, odd = words >> 16;
  if constexpr (sizeof(T) == sizeof(float)) {
    Ints at;
    for (int i = 0; i < kLanes; ++i) at[i] = i / 2 + (i % 2) * kLanes;
    return {keep(x.first, __builtin_shuffle(even, odd, at), draws),
            keep(x.second, __builtin_shuffle(even, odd, at + kLanes / 2), draws)};
  } else {
    return {keep(x.first, even, draws), keep(x.second, odd, draws)};
  }
}

template <bool kStreams, class T>
void drop_row(const Draws& draws, std::uint32_t row, const T* x, std::int64_t width, T* y) {
  for (std::int64_t begin = 0; begin < width; begin += spec::kDropoutColumns) {
    const auto group =
        static_cast<std::uint32_t>(begin / spec::kDropoutColumns * spec::kDropoutCalls);
    Words words[kParts][kRuns];
    for (int part = 0; part < kParts; ++part)
      draw(draws, row, group + static_cast<std::uint32_t>(part * kLanes), words[part]);
    for (int run = 0; run < kRuns; ++run)
      for (int part = 0; part < kParts; ++part) {
        const std::int64_t i = begin + (run * kParts + part) * kPair, left = width - i;
        if (left >= kPair) {
          store_pair<kStreams>(y + i, keep_pair<T>(load_pair(x + i), words[part][run], draws));
        } else if (left > 0) {
          T rest[kPair] = {};
          std::memcpy(rest, x + i, static_cast<std::size_t>(left) * sizeof(T));
          store_pair<false>(rest, keep_pair<T>(load_pair(rest), words[part][run], draws));
          std::memcpy(y + i, rest, static_cast<std::size_t>(left) * sizeof(T));
        }
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
