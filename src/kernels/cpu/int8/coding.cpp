// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/coding.h"

#include "kernels/coding_counts.h"
#include "kernels/cpu/codes_math.h"
#include "kernels/cpu/norm/norm_rows.h"
#include "tensor/largest_int8.h"
#if ANABATIC_ISA_LANES == 16
#include "kernels/cpu/words_avx512.h"
#endif

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

using Int = std::int64_t;

constexpr Int kPanelBytes = kInt8Panel * kInt8Unit;  // of one unit
constexpr std::int32_t kCompensation = -128;

inline Int smaller(Int a, Int b) { return a < b ? a : b; }

template <class T>
const T* row_of(const Int8Source& x, Int row) {
  return reinterpret_cast<const T*>(x.data) + x.index.line(row) * x.stride;
}

// The norm of a row. Bits are those that the kernels of rms_norm and layer_norm store.
class RowNorm {
 public:
  RowNorm(const Int8Source& x, Int row)
      : is_layer_(x.norm.bias != nullptr),
        rstd_(x.norm.statistics[x.index.line(row) * x.norm.num_statistics]),
        mean_(is_layer_ ? x.norm.statistics[x.index.line(row) * x.norm.num_statistics + 1] : 0) {}

  // The norm of elements of T, in f32.
  template <class T>
  ANABATIC_INLINE Floats of(Floats x, Floats weight, Floats bias) const {
    return is_layer_ ? layer_normalised(x, mean_, rstd_, weight, bias)
                     : rms_normalised<T>(x, rstd_, weight);
  }
  // The same of kPair elements of a row. Weight and bias are in load_pair's order of T.
  template <class T>
  ANABATIC_INLINE void store_pair_of(const T* x, const Pair& weight, const Pair& bias,
                                     T* to) const {
    const Pair value = load_pair(x);
    store_pair<false>(to, {of<T>(value.first, weight.first, bias.first),
                           of<T>(value.second, weight.second, bias.second)});
  }

 private:
  const bool is_layer_;
  const float rstd_, mean_;
};

// kPair weights of a norm, or biases, and zeroes where there are none. NaNs are as store_pair keeps
// them.
template <class T>
ANABATIC_INLINE Pair pair_of_norm(const float* values) {
  if (values == nullptr) return {Floats{}, Floats{}};
  const Pair pair = load_pair_as<T>(values);
  return {plain_nan(pair.first), plain_nan(pair.second)};
}
ANABATIC_INLINE Floats lanes_of_norm(const float* values, int count) {
  return values == nullptr ? Floats{} : plain_nan(load(values, count));
}

// `count` elements of a row from `column` on: at `x`, or in `space` the norm of them.
template <class T>
ANABATIC_INLINE const T* normalised(const Int8Source& source, Int row, Int column, const T* x,
                                    Int count, T* space) {
  if (source.norm.statistics == nullptr) return x;
  const RowNorm norm(source, row);
  const float *weight = source.norm.weight + column,
              *bias = source.norm.bias != nullptr ? source.norm.bias + column : nullptr;
  Int i = 0;
  for (; i + kPair <= count; i += kPair)
    norm.store_pair_of(x + i, pair_of_norm<T>(weight + i),
                       pair_of_norm<T>(bias != nullptr ? bias + i : nullptr), space + i);
  for_lanes(i, count, [&](Int j, int n) {
    store(space + j,
          norm.of<T>(load(x + j, n), lanes_of_norm(weight + j, n),
                     lanes_of_norm(bias != nullptr ? bias + j : nullptr, n)),
          n);
  });
  return space;
}

// A whole number within 2^22, which x rounds to.
ANABATIC_INLINE Floats rounded(Floats x) { return (x + kRounder) - kRounder; }
// As `rounded`, for the integer and its lowest byte.
ANABATIC_INLINE Ints code_bits(Floats x) { return reinterpret_cast<Ints>(x + kRounder); }
ANABATIC_INLINE Ints code_of(Ints bits) { return bits - std::bit_cast<std::int32_t>(kRounder); }

// The second code of x, whose first is `code`. scale · code is exact, and so is the difference.
ANABATIC_INLINE Floats second_value(Floats x, Floats code, Floats scale, Floats inverse) {
  return (x - scale * code) * (254.0f * inverse);
}

// Sums of the sizes of two neighbouring int8 values each.
using Sizes = std::uint16_t __attribute__((vector_size(4 * kLanes)));
ANABATIC_INLINE Sizes sizes_of(Words codes) {
  using Values = std::int8_t __attribute__((vector_size(4 * kLanes)));
  const Values values = reinterpret_cast<Values>(codes);
  const Sizes sizes = reinterpret_cast<Sizes>(values < 0 ? -values : values);
  return (sizes & 0xFF) + (sizes >> 8);
}
// Sums for the four values of each word.
ANABATIC_INLINE Ints total_of(Sizes sizes) {
  const Words words = reinterpret_cast<Words>(sizes);
  return reinterpret_cast<Ints>((words & 0xFFFFu) + (words >> 16));
}

// Σ|code|.
ANABATIC_INLINE Int total_size(const std::int8_t* codes, Int count) {
#if ANABATIC_ISA_LANES > 4  // one instruction adds eight bytes
  if (count == kInt8Block) {
    __m256i sums = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (Int i = 0; i < kInt8Block; i += 32) {
      const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
      sums = _mm256_add_epi64(sums, _mm256_sad_epu8(_mm256_abs_epi8(values), __m256i{}));
    }
    const __m128i both =
        _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm_cvtsi128_si64(both) + _mm_extract_epi64(both, 1);
  }
#endif
  Int total = 0;
  for (Int i = 0; i < count; ++i) total += codes[i] < 0 ? -codes[i] : codes[i];
  return total;
}

// The elements that are not 0, and of these the ones with the int8 value 0.
struct Zeroed {
  Int elements, zeroed;
};
#if ANABATIC_ISA_LANES == 16
// Bits of the 64 bytes that are 0.
ANABATIC_INLINE std::uint64_t zero_bytes(const std::int8_t* codes) {
  const __m512i values = _mm512_loadu_si512(codes);
  return _mm512_testn_epi8_mask(values, values);
}
// Bits of the 64 elements that are not 0.
ANABATIC_INLINE std::uint64_t nonzero(const BFloat16* x) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const auto bits = [&](const BFloat16* p) __attribute__((always_inline)) {
    return std::uint64_t{_mm512_test_epi16_mask(_mm512_loadu_si512(p), magnitude)};
  };
  return bits(x) | bits(x + 32) << 32;
}
#endif

template <class T>
ANABATIC_INLINE Zeroed zeroed_of(const T* x, const std::int8_t* codes, Int count) {
  Zeroed result{};
#if ANABATIC_ISA_LANES == 16
  if constexpr (sizeof(T) == sizeof(BFloat16))
    if (count == kInt8Block) {
#pragma GCC unroll 2
      for (Int i = 0; i < kInt8Block; i += 64) {
        const std::uint64_t elements = nonzero(x + i);
        result.elements += __builtin_popcountll(elements);
        result.zeroed += __builtin_popcountll(elements & zero_bytes(codes + i));
      }
      return result;
    }
#endif
  Ints elements{}, zeroed{};
  for_lanes(0, count, [&](Int i, int n) {
    const Ints is_nonzero = magnitude(load(x + i, n)) != 0;  // all bits, or none
    elements -= is_nonzero;
    zeroed -= is_nonzero & reinterpret_cast<Ints>(load_codes(codes + i, n) == 0.0f);
  });
  for (int e = 0; e < kLanes; ++e) {
    result.elements += elements[e];
    result.zeroed += zeroed[e];
  }
  return result;
}

template <class T>
void code_rows(const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to,
               CodingCounts* counts) {
  CodingCounts part;
  alignas(64) T of_norm[kInt8Block];
  for (Int r = first; r < last; ++r) {
    const T* row = row_of<T>(x, r);
    for (Int b = 0; b * kInt8Block < x.columns; ++b) {
      const Int k = b * kInt8Block, count = smaller(kInt8Block, x.columns - k);
      const Int at = r * to.scale_stride + b;
      std::int8_t* codes = to.codes + r * to.line_stride + k;
      const T* elements = normalised(x, r, k, row + k, count, of_norm);
      const std::int32_t largest = largest_of(elements, count);
      const BlockScale block = scale_of(largest);
      to.scales[at] = block.scale;
      if (block.is_finite)
        store_block_codes(elements, count, codes, block.inverse);
      else
        std::memset(codes, 0, static_cast<std::size_t>(count));
      if (counts != nullptr) {
        ++part.blocks;
        const auto bits = static_cast<std::uint32_t>(largest);
        part.largest = part.largest > bits ? part.largest : bits;
        if (block.is_finite) {
          const Zeroed zeroed = zeroed_of(elements, codes, count);
          part.elements += zeroed.elements;
          part.zeroed += zeroed.zeroed;
        }
      }
      if (to.second_codes == nullptr) continue;
      to.falls_back[at] = 0;
      if (!block.is_finite) continue;
      // n · max|code| > fallback · Σ|code|. The largest int8 value is that of the largest element.
      const float most = std::bit_cast<float>(largest) * block.inverse + kRounder;
      if (count * static_cast<Int>(most - kRounder) <= fallback * total_size(codes, count))
        continue;
      to.falls_back[at] = 1;
      ++part.fallbacks;
      const float size = to_float(block.scale), inverse = block.inverse;
      std::int8_t* second = to.second_codes + r * to.line_stride + k;
      for_lanes(0, count, [&](Int i, int n) {
        const Floats value = load(elements + i, n);
        const Ints code = code_of(code_bits(
            second_value(value, rounded(value * inverse), broadcast(size), broadcast(inverse))));
        if (n == kLanes) {
          const Codes bytes = __builtin_convertvector(code, Codes);
          std::memcpy(second + i, &bytes, sizeof bytes);
        } else {
          for (int e = 0; e < n; ++e) second[i + e] = static_cast<std::int8_t>(code[e]);
        }
      });
    }
  }
  if (counts != nullptr) add_shared(*counts, part);
}

// Two vectors of the columns of a strip, as load_pair orders them.
struct WordPair {
  Words first, second;
};
// The same in the order of the columns.
template <class T>
ANABATIC_INLINE WordPair in_columns(Words first, Words second) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {first, second};
  } else {
    Ints lower;
    for (int i = 0; i < kLanes; ++i) lower[i] = i % 2 * kLanes + i / 2;
    return {__builtin_shuffle(first, second, lower),
            __builtin_shuffle(first, second, lower + kLanes / 2)};
  }
}

// A block of kPair columns.
template <class T>
class Strip {
 public:
  // Rows [before, before + depth) of x from `column` on. They are copied, for rows that are a power
  // of two apart would compete for the same lines of the first cache.
  void read(const Int8Source& x, Int before, Int depth, Int column) {
    constexpr Int kRowsAhead = 16;
    const Int left = x.columns - column, count = left < 0 ? 0 : smaller(kPair, left);
    depth_ = depth;
    next_ = {.x = left > kPair ? &x : nullptr, .before = before, .column = column + kPair};
    if (count < kPair) std::memset(values_, 0, sizeof values_);
    Largest largest;
    const bool has_norm = x.norm.statistics != nullptr && count == kPair;
    const Pair weight = pair_of_norm<T>(has_norm ? x.norm.weight + column : nullptr),
               bias = pair_of_norm<T>(has_norm && x.norm.bias != nullptr ? x.norm.bias + column
                                                                         : nullptr);
    for (Int t = 0; t < depth; ++t) {
      if (t + kRowsAhead < depth)
        __builtin_prefetch(row_of<T>(x, before + t + kRowsAhead) + column);
      const T* row = row_of<T>(x, before + t) + column;
      if (count < kPair) {
        alignas(64) T of_norm[kPair];
        std::memcpy(values_[t], normalised(x, before + t, column, row, count, of_norm),
                    static_cast<std::size_t>(count) * sizeof(T));
        row = values_[t];
      } else if (has_norm) {
        RowNorm(x, before + t).store_pair_of(row, weight, bias, values_[t]);
        row = values_[t];
      }
      largest.add(row, values_[t]);
    }
    largest.get(largest_);
    for (int half = 0; half < 2; ++half) set_scales(half);
  }

  // Scales of kLanes columns each, and their int8 values from to[0] and to[1] on. `ahead`: bytes
  // from there to what is written next.
  template <bool kCounts>
  ANABATIC_INLINE void code(std::int8_t* const (&to)[2], Int ahead, BFloat16* const (&scales)[2],
                            std::int32_t* const (&compensation)[2]) {
    const WordPair bits = in_columns<T>(scale_bits_[0], scale_bits_[1]);
    store_bits(scales[0], bits.first, kLanes);
    store_bits(scales[1], bits.second, kLanes);
    put<kCounts>(
        to, ahead, compensation, [this](Floats x, int half) __attribute__((always_inline)) {
          return x * inverse_[half];
        });
  }

  // All bits of columns that fall back.
  WordPair falls_back(int fallback) const {
    Words falls[2];
    for (int half = 0; half < 2; ++half) {
      const auto largest = reinterpret_cast<Floats>(largest_[half] & keep_[half]);
      const Ints most = code_of(code_bits(largest * inverse_[half]));
      falls[half] = reinterpret_cast<Words>(static_cast<std::int32_t>(depth_) * most >
                                            fallback * total_of(sizes_[half]));
    }
    return in_columns<T>(falls[0], falls[1]);
  }

  void code_second(std::int8_t* const (&to)[2], std::int32_t* const (&compensation)[2]) {
    put<false>(
        to, 0, compensation, [this](Floats x, int half) __attribute__((always_inline)) {
          const Floats inverse = inverse_[half];
          return second_value(x, rounded(x * inverse), scale_[half], inverse);
        });
  }

 private:
  // Bits of the largest magnitudes. Those of bf16 keep their order in 16 bits.
  struct Largest {
    ANABATIC_INLINE void add(const float* from, float* to) {
      const Pair x = load_pair(from);
      store(to, x.first);
      store(to + kLanes, x.second);
      floats_[0] = larger(floats_[0], magnitude(x.first));
      floats_[1] = larger(floats_[1], magnitude(x.second));
    }
    ANABATIC_INLINE void add(const BFloat16* from, BFloat16* to) {
      PairHalves x;
      std::memcpy(&x, from, sizeof x);
      std::memcpy(to, &x, sizeof x);
      x &= 0x7FFF;
      halves_ = halves_ > x ? halves_ : x;
    }
    ANABATIC_INLINE void get(Ints (&largest)[2]) const {
      if constexpr (sizeof(T) == sizeof(float)) {
        largest[0] = floats_[0];
        largest[1] = floats_[1];
      } else {
        const Words both = reinterpret_cast<Words>(halves_);
        largest[0] = reinterpret_cast<Ints>(both << 16);
        largest[1] = reinterpret_cast<Ints>(both & 0xFFFF0000u);
      }
    }
    Ints floats_[2] = {};
    PairHalves halves_{};
  };

  // As scale_of has them.
  ANABATIC_INLINE void set_scales(int half) {
    const Ints largest = largest_[half];
    const auto value = reinterpret_cast<Floats>(largest);
    const Words up = reinterpret_cast<Words>(value / kLargestInt8) + 0xFFFFu;
    const Ints is_finite = largest < kInfinity, is_zero = value < kSmallest;
    const Words bits =
        reinterpret_cast<Words>(reinterpret_cast<Ints>(up >> 16) & ~is_zero & is_finite);
    scale_[half] = reinterpret_cast<Floats>(bits << 16);
    inverse_[half] = reinterpret_cast<Floats>(reinterpret_cast<Ints>(1.0f / scale_[half]) &
                                              ~is_zero & is_finite);
    keep_[half] = is_finite;
    const std::uint32_t nan = to_bfloat16(__builtin_nanf("")).bits;
    scale_bits_[half] = bits | (reinterpret_cast<Words>(~is_finite) & nan);
  }

  // Units of four rows' int8 values: the whole numbers that value(x, half) rounds to. With 128
  // added to each, a sum of shifted values has them as its bytes.
  template <bool kCounts, class Value>
  ANABATIC_INLINE void put(std::int8_t* const (&to)[2], Int ahead,
                           std::int32_t* const (&compensation)[2], Value&& value) {
    constexpr std::uint32_t kOnes = 0x01010101, kSigns = 0x80808080,
                            kBase = std::bit_cast<std::uint32_t>(kRounder);
    const Words keep[2] = {reinterpret_cast<Words>(keep_[0]), reinterpret_cast<Words>(keep_[1])};
    Words sums[2] = {};
    Sizes sizes[2] = {};
    std::int8_t *lower = to[0], *upper = to[1];
    const auto put_unit = [&](const Words(&unit)[2]) __attribute__((always_inline)) {
      const WordPair words = in_columns<T>(unit[0], unit[1]);
      std::memcpy(lower, &words.first, sizeof words.first);
      std::memcpy(upper, &words.second, sizeof words.second);
      lower += kPanelBytes;
      upper += kPanelBytes;
      if constexpr (kCounts)
        for (int half = 0; half < 2; ++half) sizes[half] += sizes_of(unit[half]);
    };
    const auto bits = [&](const Pair& x, int half) __attribute__((always_inline)) {
      return reinterpret_cast<Words>(code_bits(value(half == 0 ? x.first : x.second, half)));
    };
    const Int whole = depth_ / kInt8Unit * kInt8Unit;
    for (Int t = 0; t < whole; t += kInt8Unit) {
      __builtin_prefetch(lower + ahead, 1);
      __builtin_prefetch(upper + ahead, 1);
      if (next_.x != nullptr)
        for (int e = 0; e < kInt8Unit; ++e)
          __builtin_prefetch(row_of<T>(*next_.x, next_.before + t + e) + next_.column);
      const Pair x0 = load_pair(values_[t]), x1 = load_pair(values_[t + 1]),
                 x2 = load_pair(values_[t + 2]), x3 = load_pair(values_[t + 3]);
      Words unit[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Words a = bits(x0, half), b = bits(x1, half), c = bits(x2, half), d = bits(x3, half);
        sums[half] += (a + b) + (c + d);
        const Words word = ((a + (b << 8)) + ((c << 16) + (d << 24))) + (kSigns - kBase * kOnes);
        unit[half] = (word ^ kSigns) & keep[half];
      }
      put_unit(unit);
    }
    if (whole < depth_) {
      Words unit[2] = {};
      for (int e = 0; whole + e < depth_; ++e) {
        const Pair x = load_pair(values_[whole + e]);
        for (int half = 0; half < 2; ++half) {
          const Words code = bits(x, half);
          sums[half] += code;
          unit[half] |= (code & 0xFFu) << 8 * e & keep[half];
        }
      }
      put_unit(unit);
    }
    if constexpr (kCounts)
      for (int half = 0; half < 2; ++half) sizes_[half] = sizes[half];
    if (compensation[0] == nullptr) return;
    for (int half = 0; half < 2; ++half)
      sums[half] = (sums[half] - static_cast<std::uint32_t>(depth_) * kBase) & keep[half];
    const WordPair words = in_columns<T>(sums[0], sums[1]);
    const Ints first = reinterpret_cast<Ints>(words.first) * kCompensation,
               second = reinterpret_cast<Ints>(words.second) * kCompensation;
    std::memcpy(compensation[0], &first, sizeof first);
    std::memcpy(compensation[1], &second, sizeof second);
  }

  // The columns after those read: lines of the cache that arrive while these are quantised. Null at
  // the last ones.
  struct Next {
    const Int8Source* x = nullptr;
    Int before = 0, column = 0;
  };

  alignas(64) T values_[kInt8Block][kPair];
  Next next_;
  Int depth_ = 0;
  Ints largest_[2];
  Floats scale_[2], inverse_[2];
  Words scale_bits_[2];
  Ints keep_[2];  // all bits where a column is finite
  Sizes sizes_[2];
};

// Where kLanes columns that begin at `column` have block b.
struct LanePlace {
  Int codes, line, panel;
  int lane;
  LanePlace(Int column, Int b, Int units, Int blocks)
      : panel(column / kInt8Panel), lane(static_cast<int>(column % kInt8Panel)) {
    codes = (panel * units + b * (kInt8Block / kInt8Unit)) * kPanelBytes + lane * kInt8Unit;
    line = (panel * blocks + b) * kInt8Panel + lane;
  }
};

template <class T>
void code_strip(Strip<T>& strip, const LanePlace (&at)[2], bool has_upper, Int ahead, Int b,
                Int blocks, int fallback, const Int8Lines& to) {
  // Columns beyond the last panel go nowhere.
  alignas(64) std::int8_t no_codes[kInt8Block / kInt8Unit * kPanelBytes];
  BFloat16 no_scales[kLanes];
  std::int32_t no_compensation[kLanes];
  std::int8_t* codes[2] = {to.codes + at[0].codes, has_upper ? to.codes + at[1].codes : no_codes};
  BFloat16* scales[2] = {to.scales + at[0].line, has_upper ? to.scales + at[1].line : no_scales};
  const auto compensation_of = [&](std::int32_t* all, int half) -> std::int32_t* {
    if (all == nullptr) return nullptr;
    return half == 0 || has_upper ? all + at[half].line : no_compensation;
  };
  std::int32_t* compensation[2] = {compensation_of(to.compensation, 0),
                                   compensation_of(to.compensation, 1)};
  if (to.second_codes == nullptr) {
    strip.template code<false>(codes, ahead, scales, compensation);
    return;
  }
  strip.template code<true>(codes, ahead, scales, compensation);
  const WordPair falls = strip.falls_back(fallback);
  unsigned bits[2] = {};
  for (int n = 0; n < kLanes; ++n) {
    bits[0] |= (falls.first[n] & 1u) << n;
    bits[1] |= (falls.second[n] & 1u) << n;
  }
  for (int half = 0; half < (has_upper ? 2 : 1); ++half) {
    std::uint16_t& flags = to.falls_back[at[half].panel * blocks + b];
    if (at[half].lane == 0) flags = 0;
    flags = static_cast<std::uint16_t>(flags | bits[half] << at[half].lane);
  }
  if ((bits[0] | bits[1]) == 0) return;
  std::int8_t* second[2] = {to.second_codes + at[0].codes,
                            has_upper ? to.second_codes + at[1].codes : no_codes};
  std::int32_t* second_compensation[2] = {compensation_of(to.second_compensation, 0),
                                          compensation_of(to.second_compensation, 1)};
  strip.code_second(second, second_compensation);
}

template <class T>
void code_columns(const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to) {
  const Int units = int8_units(x.rows), blocks = int8_blocks(x.rows);
  Strip<T> strip;
  for (Int b = 0; b < blocks; ++b) {
    const Int before = b * kInt8Block, depth = smaller(kInt8Block, x.rows - before);
    for (Int column = first * kInt8Panel; column < last * kInt8Panel; column += kPair) {
      const LanePlace at[2] = {{column, b, units, blocks}, {column + kLanes, b, units, blocks}};
      const LanePlace next(column + kPair, b, units, blocks);
      strip.read(x, before, depth, column);
      code_strip(strip, at, at[1].panel < last, next.codes - at[0].codes, b, blocks, fallback, to);
    }
  }
}

// The int8 values of one tile of weights, zero beyond the matrix.
struct Tile {
  alignas(64) std::int8_t codes[kInt8Block][kInt8Block];
  BFloat16 scale;
};

template <class T>
void code_tile(const Int8Source& w, Int row, Int column, Tile& tile) {
  const Int rows = smaller(kInt8Block, w.rows - row),
            columns = smaller(kInt8Block, w.columns - column);
  std::int32_t largest = 0;
  for (Int r = 0; r < rows; ++r) {
    const std::int32_t of_row = largest_of(row_of<T>(w, row + r) + column, columns);
    largest = largest > of_row ? largest : of_row;
  }
  const BlockScale block = scale_of(largest);
  tile.scale = block.scale;
  if (rows < kInt8Block || columns < kInt8Block || !block.is_finite)
    std::memset(tile.codes, 0, sizeof tile.codes);
  if (!block.is_finite) return;
  for (Int r = 0; r < rows; ++r)
    store_block_codes(row_of<T>(w, row + r) + column, columns, tile.codes[r], block.inverse);
}

void put_compensation(const Int8Lines& to, Int panel, Int block, Int blocks,
                      const std::int32_t* sums) {
  if (to.compensation == nullptr) return;
  std::int32_t* result = to.compensation + (panel * blocks + block) * kInt8Panel;
  for (Int n = 0; n < kInt8Panel; ++n) result[n] = kCompensation * sums[n];
}

#if ANABATIC_ISA_LANES == 16
// Sixteen rows of 128 columns as a panel's units, and the sums of each.
template <bool kStreams>
ANABATIC_INLINE void put_whole_rows(const std::int8_t (*rows)[kInt8Block], std::int8_t* codes,
                                    std::int32_t* sums) {
  __m512i pairs = _mm512_setzero_si512();
  for (int part = 0; part < 2; ++part, codes += kInt8Panel * 64) {
    __m512i words[kInt8Panel];
#pragma GCC unroll 16
    for (int n = 0; n < kInt8Panel; ++n) words[n] = _mm512_loadu_si512(rows[n] + part * 64);
    transpose_16x16(words);
#pragma GCC unroll 16
    for (int n = 0; n < kInt8Panel; ++n) {
      pairs = add_byte_pairs(pairs, words[n]);
      if constexpr (kStreams)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(codes + n * 64), words[n]);
      else
        _mm512_storeu_si512(codes + n * 64, words[n]);
    }
  }
  _mm512_storeu_si512(sums, byte_sums(pairs));
}
#endif

// Lines are rows of the tile.
template <bool kStreams>
void put_rows(const Int8Source& w, const Tile& tile, Int row, Int column, const Int8Lines& to) {
  const Int units = int8_units(w.columns), blocks = int8_blocks(w.columns);
  for (Int r = 0; r < kInt8Block && row + r < w.rows; r += kInt8Panel) {
    const Int panel = (row + r) / kInt8Panel;
    std::int8_t* codes = to.codes + (panel * units + column / kInt8Unit) * kPanelBytes;
    std::int32_t sums[kInt8Panel] = {};
#if ANABATIC_ISA_LANES == 16
    if (column + kInt8Block <= w.columns) {
      put_whole_rows<kStreams>(&tile.codes[r], codes, sums);
      put_compensation(to, panel, column / kInt8Block, blocks, sums);
      continue;
    }
#endif
    for (Int k = 0; k < kInt8Block && column + k < w.columns; k += kInt8Unit, codes += kPanelBytes)
      for (Int n = 0; n < kInt8Panel; ++n)
        std::memcpy(codes + n * kInt8Unit, &tile.codes[r + n][k], kInt8Unit);
    for (Int n = 0; n < kInt8Panel; ++n)
      for (Int k = 0; k < kInt8Block; ++k) sums[n] += tile.codes[r + n][k];
    put_compensation(to, panel, column / kInt8Block, blocks, sums);
  }
}

// Past the caches where a whole line is at hand.
template <bool kStreams>
ANABATIC_INLINE void stream_or_store(std::int8_t* to, const Words& word) {
#if ANABATIC_ISA_LANES == 16
  if constexpr (kStreams) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(word));
    return;
  }
#endif
  std::memcpy(to, &word, sizeof word);
}

// kLanes int8 values as words.
ANABATIC_INLINE Words widened(const std::int8_t* from) {
  Codes values;
  std::memcpy(&values, from, sizeof values);
#if ANABATIC_ISA_LANES == 16  // g++ 12 widens element by element
  return reinterpret_cast<Words>(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(values)));
#else
  return reinterpret_cast<Words>(__builtin_convertvector(values, Ints));
#endif
}

// Lines are columns of the tile.
template <bool kStreams>
void put_columns(const Int8Source& w, const Tile& tile, Int row, Int column, const Int8Lines& to) {
  const Int units = int8_units(w.rows), blocks = int8_blocks(w.rows);
  const Int rows = smaller(kInt8Block, w.rows - row);
  for (Int k = 0; k < kInt8Block && column + k < w.columns; k += kInt8Panel) {
    const Int panel = (column + k) / kInt8Panel;
    std::int32_t sums[kInt8Panel];
    for (Int g = 0; g < kInt8Panel; g += kLanes) {
      std::int8_t* codes =
          to.codes + (panel * units + row / kInt8Unit) * kPanelBytes + g * kInt8Unit;
      Words sum{};
      for (Int r = 0; r < rows; r += kInt8Unit, codes += kPanelBytes) {
        const auto line = [&](Int e) __attribute__((always_inline)) {
          return widened(&tile.codes[r + e][k + g]);
        };
        const Words a = line(0), b = line(1), c = line(2), d = line(3);
        sum += (a + b) + (c + d);
        const Words word = (a & 0xFFu) | (b & 0xFFu) << 8 | (c & 0xFFu) << 16 | d << 24;
        stream_or_store<kStreams>(codes, word);
      }
      std::memcpy(sums + g, &sum, sizeof sum);
    }
    put_compensation(to, panel, row / kInt8Block, blocks, sums);
  }
}

template <class T, bool kStreams>
void code_weight_tile(const Int8Source& w, Int row, Int column, const Int8Lines* forward,
                      const Int8Lines* transposed) {
  Tile tile;
  code_tile<T>(w, row, column, tile);
  const Int place = row / kInt8Block * int8_blocks(w.columns) + column / kInt8Block;
  for (const Int8Lines* to : {forward, transposed})
    if (to != nullptr) to->scales[place] = tile.scale;
  if (forward != nullptr) put_rows<kStreams>(w, tile, row, column, *forward);
  if (transposed != nullptr) put_columns<kStreams>(w, tile, row, column, *transposed);
}

template <class T>
void code_weights(const Int8Source& w, Int first, Int last, const Int8Lines* forward,
                  const Int8Lines* transposed) {
  for (Int row = first * kInt8Block; row < last * kInt8Block && row < w.rows; row += kInt8Block)
    for (Int column = 0; column < w.columns; column += kInt8Block)
      code_weight_tile<T, false>(w, row, column, forward, transposed);
}

constexpr Int8Coding kCoding{
    .rows =
        [](const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to,
           CodingCounts* counts) {
          with_float_type(x.dtype,
                          [&]<class T>(T*) { code_rows<T>(x, first, last, fallback, to, counts); });
        },
    .columns =
        [](const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to) {
          with_float_type(x.dtype,
                          [&]<class T>(T*) { code_columns<T>(x, first, last, fallback, to); });
        },
    .weights =
        [](const Int8Source& w, Int first, Int last, const Int8Lines* forward,
           const Int8Lines* transposed) {
          with_float_type(
              w.dtype, [&]<class T>(T*) { code_weights<T>(w, first, last, forward, transposed); });
        },
    .tile =
        [](const Int8Source& w, Int row, Int column, bool streams, const Int8Lines* forward,
           const Int8Lines* transposed) {
          with_float_type(w.dtype, [&]<class T>(T*) {
            streams ? code_weight_tile<T, true>(w, row, column, forward, transposed)
                    : code_weight_tile<T, false>(w, row, column, forward, transposed);
          });
        }};

}  // namespace

const Int8Coding& int8_coding() { return kCoding; }

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
