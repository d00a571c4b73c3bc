// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/coding.h"

#include "kernels/cpu/codes_math.h"

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

// A whole number within 2^22, which x rounds to.
ANABATIC_INLINE Floats rounded(Floats x) { return (x + kRounder) - kRounder; }
// As `rounded`, for the integer and its lowest byte.
ANABATIC_INLINE Ints code_bits(Floats x) { return reinterpret_cast<Ints>(x + kRounder); }
ANABATIC_INLINE Ints code_of(Ints bits) { return bits - std::bit_cast<std::int32_t>(kRounder); }
ANABATIC_INLINE Ints absolute(Ints x) { return x < 0 ? -x : x; }

// The second code of x, whose first is `code`. scale · code is exact, and so is the difference.
ANABATIC_INLINE Floats second_value(Floats x, Floats code, Floats scale, Floats inverse) {
  return (x - scale * code) * (254.0f * inverse);
}

// Whether n · max|code| > fallback · Σ|code|.
bool falls_back(const std::int8_t* codes, Int count, int fallback) {
  std::int32_t most = 0, total = 0;
  for (Int i = 0; i < count; ++i) {
    const std::int32_t size = codes[i] < 0 ? -codes[i] : codes[i];
    most = most > size ? most : size;
    total += size;
  }
  return count * most > std::int64_t{fallback} * total;
}

template <class T>
void code_rows(const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to) {
  for (Int r = first; r < last; ++r) {
    const T* row = row_of<T>(x, r);
    for (Int b = 0; b * kInt8Block < x.columns; ++b) {
      const Int k = b * kInt8Block, count = smaller(kInt8Block, x.columns - k);
      const Int at = r * to.scale_stride + b;
      const BFloat16 scale = quantize_block(row + k, count, to.codes + r * to.line_stride + k);
      to.scales[at] = scale;
      if (to.second_codes == nullptr) continue;
      const float size = to_float(scale);
      to.falls_back[at] = 0;
      if (!(size > 0)) continue;
      if (!falls_back(to.codes + r * to.line_stride + k, count, fallback)) continue;
      to.falls_back[at] = 1;
      const float inverse = 1.0f / size;
      std::int8_t* second = to.second_codes + r * to.line_stride + k;
      for_lanes(0, count, [&](Int i, int n) {
        const Floats value = load(row + k + i, n);
        const Ints code = code_of(code_bits(
            second_value(value, rounded(value * inverse), broadcast(size), broadcast(inverse))));
        for (int e = 0; e < n; ++e) second[i + e] = static_cast<std::int8_t>(code[e]);
      });
    }
  }
}

// Columns are quantised in blocks that lie in the first cache: rows that are a power of two apart
// would compete for the same lines of it.
constexpr Int kStripColumns = kInt8StripPanels * kInt8Panel;
template <class T>
struct Strip {
  alignas(64) T values[kInt8Block][kStripColumns];
};

// The bits of the largest magnitude in each of kLanes columns.
template <class T>
ANABATIC_INLINE Ints largest_of_columns(const T* x, Int depth) {
  Ints largest{};
  for (Int t = 0; t < depth; ++t)
    largest = larger(largest, magnitude(load(x + t * kStripColumns)));
  return largest;
}
// Those of bf16 keep their order in 16 bits.
ANABATIC_INLINE Ints largest_of_columns(const BFloat16* x, Int depth) {
  Halves largest{};
  for (Int t = 0; t < depth; ++t) {
    Halves next;
    std::memcpy(&next, x + t * kStripColumns, sizeof next);
    next &= 0x7FFF;
    largest = largest > next ? largest : next;
  }
  return reinterpret_cast<Ints>(__builtin_convertvector(largest, Words) << 16);
}

// A block of kLanes columns of a strip.
template <class T>
class ColumnBlock {
 public:
  // `ahead`: bytes from this block's int8 values to those that are written next.
  void place(const T* x, Int depth, Int ahead) {
    x_ = x;
    depth_ = depth;
    ahead_ = ahead;
  }

  void code(std::int8_t* codes, BFloat16* scales, std::int32_t* compensation) {
    const Ints largest = largest_of_columns(x_, depth_);
    for (int n = 0; n < kLanes; ++n) {
      const BlockScale block = scale_of(largest[n]);
      scales[n] = block.scale;
      scale_[n] = block.is_finite ? to_float(block.scale) : 0.0f;
      inverse_[n] = block.inverse;
      keep_[n] = block.is_finite ? -1 : 0;
    }
    most_ = code_of(code_bits(reinterpret_cast<Floats>(largest & keep_) * inverse_));
    put(codes, compensation, keep_,
        [this](Floats x) __attribute__((always_inline)) { return code_bits(x * inverse_); });
  }

  // A bit a column whose block of `codes` falls back.
  unsigned falls_back(const std::int8_t* codes, int fallback) const {
    using Sizes = std::uint16_t __attribute__((vector_size(4 * kLanes)));
    Sizes total{};  // of two values a lane
    for (Int t = 0; t < depth_; t += kInt8Unit, codes += kPanelBytes) {
      std::int8_t __attribute__((vector_size(4 * kLanes))) values;
      std::memcpy(&values, codes, sizeof values);
      values = values < 0 ? -values : values;
      const Sizes sizes = reinterpret_cast<Sizes>(values);
      total += (sizes & 0xFF) + (sizes >> 8);
    }
    unsigned bits = 0;
    for (int n = 0; n < kLanes; ++n) {
      const Int of_lane = Int{total[2 * n]} + total[2 * n + 1];
      bits |= depth_ * most_[n] > fallback * of_lane ? 1u << n : 0u;
    }
    return bits;
  }

  void code_second(unsigned columns, std::int8_t* codes, std::int32_t* compensation) {
    Ints keep{};
    for (int n = 0; n < kLanes; ++n) keep[n] = (columns >> n & 1u) != 0 ? -1 : 0;
    put(codes, compensation, keep & keep_, [this](Floats x) __attribute__((always_inline)) {
      return code_bits(second_value(x, rounded(x * inverse_), scale_, inverse_));
    });
  }

 private:
  // Units of four rows' int8 values, whose lowest bytes `bits` gives: of the lanes of `keep`. With
  // 128 added to each, a sum of shifted values has them as its bytes.
  template <class Bits>
  ANABATIC_INLINE void put(std::int8_t* codes, std::int32_t* compensation, Ints keep,
                           Bits&& bits) {
    constexpr std::uint32_t kOnes = 0x01010101, kSigns = 0x80808080,
                            kBase = std::bit_cast<std::uint32_t>(kRounder);
    const auto code = [&](Int t) __attribute__((always_inline)) {
      return reinterpret_cast<Words>(bits(load(x_ + t * kStripColumns)));
    };
    const Words kept = reinterpret_cast<Words>(keep);
    const Int whole = depth_ / kInt8Unit * kInt8Unit;
    Words sum{};
    for (Int t = 0; t < whole; t += kInt8Unit, codes += kPanelBytes) {
      __builtin_prefetch(codes + ahead_, 1);
      const Words a = code(t), b = code(t + 1), c = code(t + 2), d = code(t + 3);
      sum += (a + b) + (c + d);
      const Words word = ((a + (b << 8)) + ((c << 16) + (d << 24))) + (kSigns - kBase * kOnes);
      const Words unit = (word ^ kSigns) & kept;
      std::memcpy(codes, &unit, sizeof unit);
    }
    if (whole < depth_) {
      Words word{};
      for (int e = 0; whole + e < depth_; ++e) {
        const Words bits_of = code(whole + e);
        sum += bits_of;
        word |= (bits_of & 0xFFu) << 8 * e;
      }
      word &= kept;
      std::memcpy(codes, &word, sizeof word);
    }
    if (compensation == nullptr) return;
    sum = (sum - static_cast<std::uint32_t>(depth_) * kBase) & kept;
    const Ints result = reinterpret_cast<Ints>(sum) * kCompensation;
    std::memcpy(compensation, &result, sizeof result);
  }

  const T* x_ = nullptr;
  Int depth_ = 0, ahead_ = 0;
  Floats scale_{}, inverse_{};
  Ints keep_{};  // all bits where a column is finite
  Ints most_{};  // its largest int8 value
};

// Block b of a panel, whose `depth` rows begin at x in a strip.
template <class T>
void code_panel(const T* x, Int depth, int fallback, Int panel, Int b, Int units, Int blocks,
                const Int8Lines& to) {
  constexpr int kGroups = static_cast<int>(kInt8Panel) / kLanes;
  constexpr Int kGroupCodes = kLanes * kInt8Unit;
  ColumnBlock<T> groups[kGroups];
  const Int codes = (panel * units + b * (kInt8Block / kInt8Unit)) * kPanelBytes;
  const Int line = (panel * blocks + b) * kInt8Panel;
  unsigned falling = 0;  // columns, a bit each
  for (int g = 0; g < kGroups; ++g) {
    std::int8_t* of_group = to.codes + codes + g * kGroupCodes;
    groups[g].place(x + g * kLanes, depth, units * kPanelBytes);
    groups[g].code(of_group, to.scales + line + g * kLanes,
                   to.compensation != nullptr ? to.compensation + line + g * kLanes : nullptr);
    if (to.second_codes != nullptr)
      falling |= groups[g].falls_back(of_group, fallback) << g * kLanes;
  }
  if (to.second_codes == nullptr) return;
  to.falls_back[panel * blocks + b] = static_cast<std::uint16_t>(falling);
  for (int g = 0; g < kGroups && falling != 0; ++g)
    groups[g].code_second(falling >> g * kLanes, to.second_codes + codes + g * kGroupCodes,
                          to.second_compensation != nullptr
                              ? to.second_compensation + line + g * kLanes
                              : nullptr);
}

template <class T>
void code_columns(const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to) {
  const Int units = int8_units(x.rows), blocks = int8_blocks(x.rows);
  constexpr Int kRowsAhead = 16, kLineElements = 64 / Int{sizeof(T)};
  Strip<T> strip;
  for (Int b = 0; b < blocks; ++b) {
    const Int before = b * kInt8Block, depth = smaller(kInt8Block, x.rows - before);
    for (Int panel = first; panel < last; panel += kInt8StripPanels) {
      const Int column = panel * kInt8Panel, count = smaller(kStripColumns, x.columns - column);
      if (count < kStripColumns) std::memset(strip.values, 0, sizeof strip.values);
      for (Int t = 0; t < depth; ++t) {
        if (t + kRowsAhead < depth)
          for (Int n = 0; n < count; n += kLineElements)
            __builtin_prefetch(row_of<T>(x, before + t + kRowsAhead) + column + n);
        const T* row = row_of<T>(x, before + t) + column;
        if (count == kStripColumns)
          std::memcpy(strip.values[t], row, sizeof strip.values[t]);
        else
          std::memcpy(strip.values[t], row, static_cast<std::size_t>(count) * sizeof(T));
      }
      for (Int p = 0; p < kInt8StripPanels && panel + p < last; ++p)
        code_panel(strip.values[0] + p * kInt8Panel, depth, fallback, panel + p, b, units, blocks,
                   to);
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

// Lines are rows of the tile.
void put_rows(const Int8Source& w, const Tile& tile, Int row, Int column, const Int8Lines& to) {
  const Int units = int8_units(w.columns), blocks = int8_blocks(w.columns);
  for (Int r = 0; r < kInt8Block && row + r < w.rows; r += kInt8Panel) {
    const Int panel = (row + r) / kInt8Panel;
    std::int8_t* codes = to.codes + (panel * units + column / kInt8Unit) * kPanelBytes;
    for (Int k = 0; k < kInt8Block && column + k < w.columns; k += kInt8Unit, codes += kPanelBytes)
      for (Int n = 0; n < kInt8Panel; ++n)
        std::memcpy(codes + n * kInt8Unit, &tile.codes[r + n][k], kInt8Unit);
    std::int32_t sums[kInt8Panel] = {};
    for (Int n = 0; n < kInt8Panel; ++n)
      for (Int k = 0; k < kInt8Block; ++k) sums[n] += tile.codes[r + n][k];
    put_compensation(to, panel, column / kInt8Block, blocks, sums);
  }
}

// Lines are columns of the tile.
void put_columns(const Int8Source& w, const Tile& tile, Int row, Int column, const Int8Lines& to) {
  const Int units = int8_units(w.rows), blocks = int8_blocks(w.rows);
  for (Int k = 0; k < kInt8Block && column + k < w.columns; k += kInt8Panel) {
    const Int panel = (column + k) / kInt8Panel;
    std::int8_t* codes = to.codes + (panel * units + row / kInt8Unit) * kPanelBytes;
    std::int32_t sums[kInt8Panel] = {};
    for (Int r = 0; r < kInt8Block && row + r < w.rows; r += kInt8Unit, codes += kPanelBytes)
      for (Int g = 0; g < kInt8Panel; g += kLanes) {
        Words word{};
        Ints sum{};
        for (int e = 0; e < kInt8Unit; ++e) {
          Codes line;
          std::memcpy(&line, &tile.codes[r + e][k + g], sizeof line);
          const Ints wide = __builtin_convertvector(line, Ints);
          sum += wide;
          word |= (reinterpret_cast<Words>(wide) & 0xFFu) << 8 * e;
        }
        std::memcpy(codes + g * kInt8Unit, &word, sizeof word);
        for (int n = 0; n < kLanes; ++n) sums[g + n] += sum[n];
      }
    put_compensation(to, panel, row / kInt8Block, blocks, sums);
  }
}

template <class T>
void code_weights(const Int8Source& w, Int first, Int last, const Int8Lines* forward,
                  const Int8Lines* transposed) {
  Tile tile;
  for (Int row = first * kInt8Block; row < last * kInt8Block && row < w.rows; row += kInt8Block)
    for (Int column = 0; column < w.columns; column += kInt8Block) {
      code_tile<T>(w, row, column, tile);
      const Int place = row / kInt8Block * int8_blocks(w.columns) + column / kInt8Block;
      for (const Int8Lines* to : {forward, transposed})
        if (to != nullptr) to->scales[place] = tile.scale;
      if (forward != nullptr) put_rows(w, tile, row, column, *forward);
      if (transposed != nullptr) put_columns(w, tile, row, column, *transposed);
    }
}

constexpr Int8Coding kCoding{
    .rows =
        [](const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to) {
          with_float_type(x.dtype,
                          [&]<class T>(T*) { code_rows<T>(x, first, last, fallback, to); });
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
        }};

}  // namespace

const Int8Coding& int8_coding() { return kCoding; }

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
