// SPDX-License-Identifier: Apache-2.0
// Products with unstructured sparse weights, in f32 arithmetic: rows of x lie side by side, so that
// each present weight multiplies vectors of rows.
//
// Two vectors of rows are a tile, which is copied as [depth][2][kLanes] of f32. Rows of bf16 are
// copied as one vector of words instead, with the second half of the rows in the upper 16 bits: the
// tile of a usual depth then stays in the first cache.
#include "kernels/cpu/call.h"
#include "kernels/cpu/sparse/sparse_call.h"
#include "kernels/cpu/vector_math.h"
#if ANABATIC_ISA_LANES == 16
#include "kernels/cpu/words_avx512.h"
#endif

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

using Int = std::int64_t;

constexpr Int kTileRows = 2 * kLanes;
// Results that wait to be turned into rows.
constexpr Int kLines = 16;
// Weights of a line are summed by so many accumulators, each of at most kMostSumTerms.
constexpr int kChains = 4;

struct Pair {
  Floats first, second;
};

// Rows [0, count) of x as [depth] words, of which lane i has row i and row kLanes + i.
void copy_rows(const std::uint16_t* x, Int depth, Int count, std::uint32_t* __restrict to) {
  Int k = 0;
#if ANABATIC_ISA_LANES == 16
  for (; count == kTileRows && k + 32 <= depth; k += 32) {
    alignas(64) std::uint32_t pairs[2][16][16];
    for (int half = 0; half < 2; ++half)
      transpose_words(pairs[half],
                      reinterpret_cast<const std::byte*>(x + half * kLanes * depth + k), depth * 2);
    for (int u = 0; u < 16; ++u) {
      Words low, high;
      __builtin_memcpy(&low, pairs[0][u], sizeof low);
      __builtin_memcpy(&high, pairs[1][u], sizeof high);
      const Words even = (low & 0xFFFFu) | high << 16, odd = low >> 16 | (high & 0xFFFF0000u);
      __builtin_memcpy(to + (k + 2 * u) * kLanes, &even, sizeof even);
      __builtin_memcpy(to + (k + 2 * u + 1) * kLanes, &odd, sizeof odd);
    }
  }
#endif
  for (; k < depth; ++k)
    for (Int i = 0; i < kLanes; ++i) {
      const std::uint32_t low = i < count ? x[i * depth + k] : 0u;
      const std::uint32_t high = kLanes + i < count ? x[(kLanes + i) * depth + k] : 0u;
      to[k * kLanes + i] = low | high << 16;
    }
}
void copy_rows(const float* x, Int depth, Int count, float* __restrict to) {
  Int k = 0;
#if ANABATIC_ISA_LANES == 16
  for (; count == kTileRows && k + 16 <= depth; k += 16) {
    alignas(64) float turned[2][16][16];
    for (int half = 0; half < 2; ++half)
      transpose_words(turned[half],
                      reinterpret_cast<const std::byte*>(x + half * kLanes * depth + k), depth * 4);
    for (int u = 0; u < 16; ++u)
      for (int half = 0; half < 2; ++half)
        __builtin_memcpy(to + (k + u) * kTileRows + half * kLanes, turned[half][u], 64);
  }
#endif
  for (; k < depth; ++k)
    for (Int i = 0; i < kTileRows; ++i) to[k * kTileRows + i] = i < count ? x[i * depth + k] : 0.0f;
}

ANABATIC_INLINE Pair rows_at(const std::uint32_t* tile, Int k) {
  Words words;
  __builtin_memcpy(&words, tile + k * kLanes, sizeof words);
  return {reinterpret_cast<Floats>(words << 16), reinterpret_cast<Floats>(words & 0xFFFF0000u)};
}
ANABATIC_INLINE Pair rows_at(const float* tile, Int k) {
  return {load(tile + k * kTileRows), load(tile + k * kTileRows + kLanes)};
}
ANABATIC_INLINE float value_of(const std::uint16_t* values, Int n) {
  return __builtin_bit_cast(float, std::uint32_t{values[n]} << 16);
}
ANABATIC_INLINE float value_of(const float* values, Int n) { return values[n]; }

// One line of the tile's rows.
template <class Unit, class T>
ANABATIC_INLINE Pair line_of(const Unit* tile, const T* values, const std::int32_t* steps,
                             Int count) {
  Pair total{};
  Int n = 0;
  do {
    Pair sums[kChains]{};
    const Int left = count - n,
              end = n + (left < kChains * kMostSumTerms ? left : kChains * kMostSumTerms);
    for (; n + kChains <= end; n += kChains)
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        const Floats value = broadcast(value_of(values, n + c));
        const Pair rows = rows_at(tile, steps[n + c]);
        sums[c].first = madd(value, rows.first, sums[c].first);
        sums[c].second = madd(value, rows.second, sums[c].second);
      }
    for (; n < end; ++n) {
      const Floats value = broadcast(value_of(values, n));
      const Pair rows = rows_at(tile, steps[n]);
      sums[0].first = madd(value, rows.first, sums[0].first);
      sums[0].second = madd(value, rows.second, sums[0].second);
    }
    total.first += (sums[0].first + sums[1].first) + (sums[2].first + sums[3].first);
    total.second += (sums[0].second + sums[1].second) + (sums[2].second + sums[3].second);
  } while (n < count);
  return total;
}

ANABATIC_INLINE void put(float* to, float value) { *to = value; }
ANABATIC_INLINE void put(std::uint16_t* to, float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t even = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  *to = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits >> 16 | 0x40u : even);
}
ANABATIC_INLINE void put_line(std::uint16_t* to, Floats values) {
  store(reinterpret_cast<BFloat16*>(to), values);
}
ANABATIC_INLINE void put_line(float* to, Floats values) { store(to, values); }

// Results [kLines][kTileRows] to rows of C, of which each is `stride` long.
template <class T>
void put_lines(const float* results, Int num_lines, Int num_rows, T* c, Int stride) {
#if ANABATIC_ISA_LANES == 16
  if (num_lines == kLines) {
    alignas(64) float turned[16][16];
    for (Int first = 0; first < num_rows; first += kLanes) {
      transpose_words(turned, reinterpret_cast<const std::byte*>(results + first),
                      kTileRows * Int{sizeof(float)});
      for (Int row = first; row < num_rows && row < first + kLanes; ++row)
        put_line(c + row * stride, load(turned[row - first]));
    }
    return;
  }
#endif
  for (Int row = 0; row < num_rows; ++row)
    for (Int line = 0; line < num_lines; ++line)
      put(c + row * stride + line, results[line * kTileRows + row]);
}

// Rows of a group from `row` on, at most a tile of them.
template <class Unit, class T>
void multiply_tile(const Arguments& args, const SparseGroups& groups, Int group, Int row,
                   std::byte* workspace) {
  const Int depth = groups.layout.depth, lines = groups.layout.lines,
            left = groups.num_rows(group) - row, count = left < kTileRows ? left : kTileRows;
  const T* values = args.inputs[1].as<const T>() + group * groups.layout.kept;
  const std::int32_t *offsets = groups.offsets_of_panels(group), *steps = groups.steps(group);
  const float* bias = groups.offsets == nullptr && args.inputs.size() > kSparseOffsetsOrBias
                          ? args.inputs[kSparseOffsetsOrBias].as<const float>()
                          : nullptr;
  auto* tile = reinterpret_cast<Unit*>(workspace);
  copy_rows(args.inputs[0].as<const T>() + (groups.begin(group) + row) * depth, depth, count, tile);
  T* c = args.outputs[0].as<T>() + (groups.begin(group) + row) * lines;
  alignas(64) float results[kLines * kTileRows];
  for (Int first = 0; first < lines; first += kLines) {
    const Int num_lines = lines - first < kLines ? lines - first : kLines;
    for (Int line = 0; line < num_lines; ++line) {
      const std::int32_t begin = offsets[first + line];
      Pair sums = line_of(tile, values + begin, steps + begin, offsets[first + line + 1] - begin);
      if (bias != nullptr) {
        sums.first += broadcast(bias[first + line]);
        sums.second += broadcast(bias[first + line]);
      }
      store(results + line * kTileRows, sums.first);
      store(results + line * kTileRows + kLanes, sums.second);
    }
    put_lines(results, num_lines, count, c + first, lines);
  }
}

}  // namespace

void sparse_csr(const Arguments& args) {
  const SparseGroups groups(args, columns(args.outputs[0]), columns(args.inputs[0]));
  const bool is_bf16 = args.inputs[0].type->dtype == DType::kBFloat16;
  const Int thread_bytes = groups.layout.depth * 2 * kMostCsrLanes * 4;
  Int num_tiles = 0;
  for (Int group = 0; group < groups.count; ++group)
    num_tiles += (groups.num_rows(group) + kTileRows - 1) / kTileRows;
  args.launch.team->for_tasks(num_tiles, [&](Int tile, int thread) {
    Int group = 0;
    for (;; ++group) {
      const Int tiles = (groups.num_rows(group) + kTileRows - 1) / kTileRows;
      if (tile < tiles) break;
      tile -= tiles;
    }
    std::byte* workspace = args.workspace + thread * thread_bytes;
    if (is_bf16)
      multiply_tile<std::uint32_t, std::uint16_t>(args, groups, group, tile * kTileRows, workspace);
    else
      multiply_tile<float, float>(args, groups, group, tile * kTileRows, workspace);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
