// SPDX-License-Identifier: Apache-2.0
// The update of a stretch of elements by any rule, whatever form parameter and moments are kept in.
// One namespace an instruction set, as vector_math.h has it.
#pragma once
#include <cmath>
#include <type_traits>

#include "base/rounding.h"
#include "kernels/byte_watch.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/optimizer/mask_bits.h"
#include "kernels/cpu/optimizer/rules.h"
#include "kernels/cpu/vector_math.h"
#include "tensor/panels.h"
#include "tensor/stochastic_rounding.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// A panel of a matrix: where it begins in tensors of f32, of 16 bits and of moments, and its depth.
// `element`: the first element of its first column in row-major order. `index`: its number over all
// matrices.
struct Panel {
  std::int64_t wide, half, moments, depth, columns;
  std::uint32_t element, stride;
  std::int64_t index;
};
// 16 rows of a matrix in rows. `first`: the first element of the first one.
struct Band {
  std::int64_t first, width, rows, index;  // index: over all matrices of a stack
};

// Places of operands; those of packings are another matter.
template <bool kSplit>
inline constexpr spec::OptimizerStep kPlaces{.is_split = kSplit};

// The word_sums of what passes through registers, lanes apart.
class WordSums {
 public:
  using Longs = std::uint64_t __attribute__((vector_size(4 * kLanes)));
  static constexpr std::int64_t kVectorWords = kLanes / 2;

  // The keys of words [index, index + kVectorWords).
  ANABATIC_INLINE static Longs keys(std::int64_t index) {
    Longs x{};
    for (int i = 0; i < kVectorWords; ++i) x[i] = static_cast<std::uint64_t>(i + 1) * kWordKey;
    return x + static_cast<std::uint64_t>(index) * kWordKey;
  }
  template <class T>
  ANABATIC_INLINE void add(T bits, Longs keys) {
    const Longs word = reinterpret_cast<Longs>(bits), mixed = word ^ keys;
    sums_ += multiply_halves(mixed) + word;
  }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (int i = 0; i < kVectorWords; ++i) sum += sums_[i];
    return sum;
  }

 private:
  // The lower half of each word by its upper one.
  ANABATIC_INLINE static Longs multiply_halves(Longs x) {
#if ANABATIC_ISA_LANES == 16
    return reinterpret_cast<Longs>(
        _mm512_mul_epu32(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(x >> 32)));
#elif ANABATIC_ISA_LANES == 8
    return reinterpret_cast<Longs>(
        _mm256_mul_epu32(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(x >> 32)));
#else
    return (x & 0xFFFFFFFFu) * (x >> 32);
#endif
  }

  Longs sums_{};
};

// Sums over rows of a panel, for each state other than the parameter: as they were read and as they
// were written. `wide` and `half`: the word of such a state at which row 0 of the panel would lie.
struct PanelSums {
  std::int64_t wide, half;
  WordSums low[2]{}, moments[2][2]{};  // by pass; by moment and pass
};

// What an update covers: panels, or elements where rows lie in order, of all matrices.
struct Stretch {
  std::int64_t begin, end;
  std::int64_t shift;  // elements of `held` that lie before it in the whole state
};

// The stretch of the rows that `held`, a moment or the lower 16 bits, has: those from the attribute
// `first_row` on, or all without it.
inline Stretch stretch_of(const TensorType& parameter, const TensorType& held,
                          const spec::Attributes& attributes) {
  const std::int64_t row = spec::optimizer_step_of(attributes).first_row;
  if (!is_panels(parameter.layout)) {
    const std::int64_t begin = parameter.ndim() > 1 ? row * parameter.dim(-1) : 0;
    return {begin, begin + held.num_elements(), begin};
  }
  const std::int64_t rows = parameter.dim(-2), matrices = held.ndim() == 3 ? held.dim(0) : 1;
  const std::int64_t begin =
      row / rows * ceil_div(rows, kPanelColumns) + row % rows / kPanelColumns;
  return {begin, begin + matrices * panel_shape(held).num_panels(),
          begin * panel_shape(held).panel_elements()};
}

// In place. A clip factor that is not finite changes nothing. kSplit: the parameter as its upper
// and lower 16 bits (tensor/split_float.h). kHalf: moments in bf16, rounded stochastically. Tensors
// of 16 bits lie in panels by pairs of the depth.
template <class Rule, bool kSplit, bool kHalf>
struct Update {
  using Weight = std::conditional_t<kSplit, BFloat16, float>;
  using Moment = std::conditional_t<kHalf, BFloat16, float>;
  static constexpr bool kPaired = kSplit || kHalf;
  static constexpr std::size_t kFirstMoment = kPlaces<kSplit>.new_first_moment();  // of outputs
  static constexpr bool kHalfMoments = kHalf, kBlocks = false;

  const float* gradient;
  Weight *weight, *low;  // the f32 parameter, or its upper 16 bits; its lower 16 bits
  Moment* moments[2];
  Rule rule;
  float clip;
  bool finite;
  const std::uint8_t* bits;  // of the mask, by f32 elements as they lie; null: all are present
  RoundingKey key{};

  // `has_bits_of_mask`: the workspace begins with those of expand_mask.
  Update(const Arguments& args, bool has_bits_of_mask)
      : rule(*args.attributes,
             *args.inputs[kPlaces<kSplit>.learning_rate()].template as<const float>(),
             step_of(args)) {
    constexpr spec::OptimizerStep kAt = kPlaces<kSplit>;
    gradient = args.inputs[kAt.gradient()].template as<const float>();
    weight = args.outputs[0].template as<Weight>();
    // As if those of the whole parameter stood: none before the stretch is touched.
    const auto shift_of = [&](const TensorView& held) {
      return stretch_of(*args.outputs[0].type, *held.type, *args.attributes).shift;
    };
    low = kSplit ? args.outputs[1].template as<Weight>() - shift_of(args.outputs[1]) : nullptr;
    for (std::size_t i = 0; i < 2; ++i) {
      const TensorView& moment = args.outputs[kFirstMoment + i];
      moments[i] = moment.template as<Moment>() - shift_of(moment);
    }
    clip = *args.inputs[kAt.clip_factor()].template as<const float>();
    finite = std::isfinite(clip);
    bits = has_bits_of_mask ? reinterpret_cast<const std::uint8_t*>(args.workspace) : nullptr;
    if (kHalf) key = rounding_key(spec::get_int(*args.attributes, "stream"), step_of(args));
  }

  static std::int32_t step_of(const Arguments& args) {
    return *args.inputs[kPlaces<kSplit>.step()].template as<const std::int32_t>();
  }

  // `first`: the place of the elements among those of f32.
  ANABATIC_INLINE void step(Floats& p, Floats& m, Floats& v, Floats raw, std::int64_t first) const {
    if (finite) rule.step(p, m, v, clip * raw);
    if (bits == nullptr) return;
    const Words kept = present(bits, first);
    p = where(kept, p);
    m = where(kept, m);
    v = where(kept, v);
  }

  // Whether none of the elements is present and all are 0 already, as from the second update of a
  // mask on: then no gradient is read and nothing is written.
  ANABATIC_INLINE bool is_absent(std::int64_t first, Floats p, Floats m, Floats v) const {
    return !has_bits(present(bits, first) | reinterpret_cast<Words>(p) |
                     reinterpret_cast<Words>(m) | reinterpret_cast<Words>(v));
  }

  // rounding_word of kLanes elements; its lower half rounds the first moment.
  ANABATIC_INLINE Words draws(Words elements) const {
    Words x = elements + key.first;
    x = ((x ^ x >> 16) * 0x7FEB352Du) ^ key.second;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
  }
  // Their bits, of which the upper half is the rounded value.
  ANABATIC_INLINE static Words rounded(Floats moment, Words draw) {
    return reinterpret_cast<Words>(moment) + draw;
  }

  // Elements [begin, end) as they lie, of tensors that all lie alike, but for moments, whose
  // element 0 is the others' `moments_begin`; `copy`, unless null, gets the parameter as bf16.
  __attribute__((noinline)) void run(std::int64_t begin, std::int64_t end, BFloat16* copy = nullptr,
                                     std::int64_t moments_begin = 0) const {
    run_inline(begin, end, copy, moments_begin);
  }
  ANABATIC_INLINE void run_inline(std::int64_t begin, std::int64_t end, BFloat16* copy = nullptr,
                                  std::int64_t moments_begin = 0) const {
    for_lanes(begin, end, [&](std::int64_t i, int n) {
      const std::int64_t at = i - moments_begin;
      Floats p = load(weight + i, n), m = load(moments[0] + at, n), v = load(moments[1] + at, n);
      if constexpr (kSplit)
        p = reinterpret_cast<Floats>(
            (reinterpret_cast<Words>(p) | reinterpret_cast<Words>(load(low + i, n)) >> 16) -
            0x8000u);
      if (bits != nullptr && is_absent(i, p, m, v)) {
        if (copy != nullptr) store_bits(copy + (i - begin), Words{}, n);
        return;
      }
      step(p, m, v, load(gradient + i, n), i);
      if constexpr (kSplit) {
        const Words x = reinterpret_cast<Words>(p) + 0x8000u;
        store_bits(weight + i, x >> 16, n);
        store_bits(low + i, x & 0xFFFFu, n);
      } else {
        store(weight + i, p, n);
        if (copy != nullptr) store_half_away(copy + (i - begin), p, n);
      }
      if constexpr (kHalf) {
        const Words word = draws(count_up() + static_cast<std::uint32_t>(i));
        store_bits(moments[0] + at, rounded(m, word & 0xFFFFu) >> 16, n);
        store_bits(moments[1] + at, rounded(v, word >> 16) >> 16, n);
      } else {
        store(moments[0] + at, m, n);
        store(moments[1] + at, v, n);
      }
    });
  }

  // Calls body(array) for each that an update reads.
  template <class Body>
  ANABATIC_INLINE void for_arrays(Body&& body) const {
    body(gradient);
    body(weight);
    if (kSplit) body(low);
    body(moments[0]);
    body(moments[1]);
  }

  // Columns [column, column + count) of a band; `copy`, unless null, gets rows of `stride`.
  void run(const Band& band, std::int64_t column, std::int64_t count, BFloat16* copy,
           std::int64_t stride) const {
    for (std::int64_t row = 0; row < band.rows; ++row) {
      const std::int64_t at = band.first + row * band.width + column;
      run(at, at + count, copy == nullptr ? nullptr : copy + row * stride);
    }
  }

  static ANABATIC_INLINE Words count_up() {
    Words lanes{};
    for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<std::uint32_t>(i);
    return lanes;
  }

  // kLanes columns of two rows of the depth; the second one is absent after the last row.
  template <bool kBoth, class T>
  ANABATIC_INLINE static void load_pair(Floats* x, const T* from, std::int64_t at,
                                        std::int64_t lane) {
    if constexpr (sizeof(T) == sizeof(BFloat16)) {
      Words pairs;
      std::memcpy(&pairs, from + (at + 2 * lane), sizeof pairs);
      x[0] = reinterpret_cast<Floats>(pairs << 16);
      x[1] = reinterpret_cast<Floats>(pairs & 0xFFFF0000u);
    } else {
      const float* row = from + (at + lane);
      x[0] = load(row);
      x[1] = kBoth ? load(row + kPanelColumns) : Floats{};
    }
  }
  template <bool kBoth>
  ANABATIC_INLINE static void store_pair(float* to, const Floats* x, std::int64_t at,
                                         std::int64_t lane) {
    float* row = to + (at + lane);
    store(row, x[0]);
    if (kBoth) store(row + kPanelColumns, x[1]);
  }
  ANABATIC_INLINE static void store_words(BFloat16* to, Words pairs, std::int64_t at,
                                          std::int64_t lane) {
    std::memcpy(to + (at + 2 * lane), &pairs, sizeof pairs);
  }

  // Rows [begin, end) of the depth of a panel, `begin` even, `end` too unless it is the last;
  // `copy`, unless null, gets the parameter as bf16, rows of 16.
  void run(const Panel& panel, std::int64_t begin, std::int64_t end, BFloat16* copy) const {
    run_rows<false>(panel, begin, end, copy, nullptr);
  }
  // The same, with sums of what passes.
  void run(const Panel& panel, std::int64_t begin, std::int64_t end, BFloat16* copy,
           PanelSums& sums) const {
    run_rows<true>(panel, begin, end, copy, &sums);
  }

  template <bool kSums>
  __attribute__((noinline)) void run_rows(const Panel& panel, std::int64_t begin, std::int64_t end,
                                          BFloat16* copy, PanelSums* all_sums) const {
    PanelSums sums{};  // in registers
    if constexpr (kSums) sums = *all_sums;
    constexpr int kVectors = kPanelColumns / kLanes;
    Words first[kVectors], masks[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const Words columns = count_up() + static_cast<std::uint32_t>(i * kLanes);
      masks[i] = reinterpret_cast<Words>(columns < static_cast<std::uint32_t>(panel.columns));
      first[i] = columns * panel.stride + panel.element;
    }
    Keys keys{};
    if constexpr (kSums)
      keys = {WordSums::keys(sums.wide + begin * kRowWords),
              WordSums::keys(sums.half + begin * kRowWords / 2)};
    const auto run_at = [&]<bool kBoth>(std::int64_t k) __attribute__((always_inline)) {
      prefetch(panel, k + kRowsAhead);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i)
        run_pair<kSums, kBoth>(
            panel, k, i * kLanes, first[i] + static_cast<std::uint32_t>(k), masks[i],
            copy == nullptr ? nullptr : copy + (k - begin) * kPanelColumns + i * kLanes, sums,
            keys.at(i * WordSums::kVectorWords));
      keys = {keys.wide + 2 * kRowWords * kWordKey, keys.half + kRowWords * kWordKey};
    };
    const std::int64_t last = std::min(end, panel.depth - 1);
    std::int64_t k = begin;
    for (; k < last; k += 2) run_at.template operator()<true>(k);
    if (k < end) run_at.template operator()<false>(k);
    if constexpr (kSums) *all_sums = sums;
  }

  // Two rows of what is read. Without, the rows that an update has under way at once fill the
  // processor's window before their loads do the memory's. All inlined: g++ takes a function that
  // does nothing else for one without effect, and drops its calls.
  ANABATIC_INLINE void prefetch(const Panel& panel, std::int64_t k) const {
    const std::int64_t at = k * kPanelColumns;
    const auto ask = [](const auto* from) __attribute__((always_inline)) {
      __builtin_prefetch(from);
      if constexpr (sizeof *from == sizeof(float)) __builtin_prefetch(from + kPanelColumns);
    };
    if (bits == nullptr || has_present(panel, k)) ask(gradient + (panel.wide + at));
    ask(weight + ((kSplit ? panel.half : panel.wide) + at));
    if constexpr (kSplit) ask(low + (panel.half + at));
    for (const Moment* moment : moments) ask(moment + (panel.moments + at));
  }

  // Whether the mask has something of two rows; true beyond the panel.
  ANABATIC_INLINE bool has_present(const Panel& panel, std::int64_t k) const {
    if (k + 2 > panel.depth) return true;
    std::uint32_t both;
    std::memcpy(&both, bits + (panel.wide + k * kPanelColumns) / 8, sizeof both);
    return both != 0;
  }

  // Keys of the words of a row of f32, and of a pair of rows of 16 bits.
  struct Keys {
    WordSums::Longs wide, half;
    ANABATIC_INLINE Keys at(std::uint64_t words) const {
      return {wide + words * kWordKey, half + words * kWordKey};
    }
  };
  static constexpr std::int64_t kRowWords = kPanelColumns * 4 / kWordBytes;  // of f32
  static constexpr std::int64_t kRowsAhead = 32;

  // Moments of two rows, or one, as they lie in memory.
  template <bool kBoth>
  ANABATIC_INLINE static void add_moments(PanelSums& sums, int pass, const Floats* m,
                                          const Floats* v, const Keys& keys) {
    if constexpr (kHalf) {
      const auto pairs_of = [](const Floats* x) {
        return reinterpret_cast<Words>(x[0]) >> 16 | reinterpret_cast<Words>(x[1]);
      };
      sums.moments[0][pass].add(pairs_of(m), keys.half);
      sums.moments[1][pass].add(pairs_of(v), keys.half);
    } else {
      sums.moments[0][pass].add(m[0], keys.wide);
      sums.moments[1][pass].add(v[0], keys.wide);
      if constexpr (!kBoth) return;
      const WordSums::Longs next = keys.wide + kRowWords * kWordKey;
      sums.moments[0][pass].add(m[1], next);
      sums.moments[1][pass].add(v[1], next);
    }
  }

  // What lies beyond the columns and the depth stays zero: a quotient of zeroes there is NaN when
  // epsilon is 0.
  template <bool kSums, bool kBoth>
  ANABATIC_INLINE void run_pair(const Panel& panel, std::int64_t k, std::int64_t lane,
                                Words element, Words mask, BFloat16* copy, PanelSums& sums,
                                const Keys& keys) const {
    const std::int64_t at = k * kPanelColumns, in_wide = panel.wide + at, in_half = panel.half + at,
                       in_weight = kSplit ? in_half : in_wide, in_moments = panel.moments + at;
    const Words masks[2] = {mask, kBoth ? mask : Words{}};
    Floats p[2], m[2], v[2], g[2];
    load_pair<kBoth>(p, weight, in_weight, lane);
    load_pair<kBoth>(m, moments[0], in_moments, lane);
    load_pair<kBoth>(v, moments[1], in_moments, lane);
    if constexpr (kSplit) {
      Words pairs;
      std::memcpy(&pairs, low + (in_half + 2 * lane), sizeof pairs);
      if constexpr (kSums) sums.low[0].add(pairs, keys.half);
      p[0] =
          reinterpret_cast<Floats>((reinterpret_cast<Words>(p[0]) | (pairs & 0xFFFFu)) - 0x8000u);
      p[1] = reinterpret_cast<Floats>((reinterpret_cast<Words>(p[1]) | pairs >> 16) - 0x8000u);
    }
    if constexpr (kSums) add_moments<kBoth>(sums, 0, m, v, keys);
    if (!kSums && bits != nullptr && is_absent(in_wide + lane, p[0], m[0], v[0]) &&
        (!kBoth || is_absent(in_wide + kPanelColumns + lane, p[1], m[1], v[1]))) {
      if (copy != nullptr)
        for (int i = 0; i < 2; ++i) store_bits(copy + i * kPanelColumns, Words{}, kLanes);
      return;
    }
    load_pair<kBoth>(g, gradient, in_wide, lane);
    Words x[2], word[2];
    for (int i = 0; i < 2; ++i) {
      step(p[i], m[i], v[i], g[i], in_wide + i * kPanelColumns + lane);
      if constexpr (kSplit) x[i] = (reinterpret_cast<Words>(p[i]) + 0x8000u) & masks[i];
      p[i] = reinterpret_cast<Floats>(reinterpret_cast<Words>(p[i]) & masks[i]);
      m[i] = reinterpret_cast<Floats>(reinterpret_cast<Words>(m[i]) & masks[i]);
      v[i] = reinterpret_cast<Floats>(reinterpret_cast<Words>(v[i]) & masks[i]);
      if constexpr (kHalf) word[i] = draws(element + static_cast<std::uint32_t>(i)) & masks[i];
    }
    if constexpr (kSplit) {
      store_words(weight, x[0] >> 16 | (x[1] & 0xFFFF0000u), in_half, lane);
      const Words pairs = (x[0] & 0xFFFFu) | x[1] << 16;
      store_words(low, pairs, in_half, lane);
      if constexpr (kSums) sums.low[1].add(pairs, keys.half);
    } else {
      store_pair<kBoth>(weight, p, in_wide, lane);
    }
    if constexpr (kHalf) {
      const Words m0 = rounded(m[0], word[0] & 0xFFFFu), m1 = rounded(m[1], word[1] & 0xFFFFu);
      const Words v0 = rounded(v[0], word[0] >> 16), v1 = rounded(v[1], word[1] >> 16);
      const Words pairs[2] = {m0 >> 16 | (m1 & 0xFFFF0000u), v0 >> 16 | (v1 & 0xFFFF0000u)};
      for (int i = 0; i < 2; ++i) {
        store_words(moments[i], pairs[i], in_moments, lane);
        if constexpr (kSums) sums.moments[i][1].add(pairs[i], keys.half);
      }
    } else {
      store_pair<kBoth>(moments[0], m, in_moments, lane);
      store_pair<kBoth>(moments[1], v, in_moments, lane);
      if constexpr (kSums) add_moments<kBoth>(sums, 1, m, v, keys);
    }
    if (copy == nullptr) return;
    for (int i = 0; i < 2; ++i) {
      if constexpr (kSplit)
        store_bits(copy + i * kPanelColumns, x[i] >> 16, kLanes);
      else
        store_half_away(copy + i * kPanelColumns, p[i], kLanes);
    }
  }
};

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
