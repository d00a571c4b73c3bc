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
  return reinterpret_cast<const T*>(x.data) + row * x.stride;
}

// What a lane's values are made with.
struct LaneScales {
  Floats scale, inverse;
  Ints is_finite;  // all bits, or none
};

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

ANABATIC_INLINE std::int32_t sum_of_lanes(Ints x) {
  std::int32_t sum = 0;
  for (int n = 0; n < kLanes; ++n) sum += x[n];
  return sum;
}

// Whether n · max|code| > fallback · Σ|code| in a block of a row, of finite elements.
template <class T>
bool falls_back(const T* x, Int count, float inverse, int fallback) {
  Ints most{}, total{};
  for_lanes(0, count, [&](Int i, int n) {
    const Ints size = absolute(code_of(code_bits(load(x + i, n) * inverse)));
    most = larger(most, size);
    total += size;
  });
  return count * largest_lane(most) > std::int64_t{fallback} * sum_of_lanes(total);
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
      const float inverse = 1.0f / size;
      if (!falls_back(row + k, count, inverse, fallback)) continue;
      to.falls_back[at] = 1;
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

LaneScales lane_scales(Ints largest, BFloat16* scales) {
  LaneScales lanes{};
  for (int n = 0; n < kLanes; ++n) {
    const BlockScale block = scale_of(largest[n]);
    scales[n] = block.scale;
    lanes.scale[n] = block.is_finite ? to_float(block.scale) : 0.0f;
    lanes.inverse[n] = block.inverse;
    lanes.is_finite[n] = block.is_finite ? -1 : 0;
  }
  return lanes;
}

// One block of kLanes columns, `count` of them within x.
template <class T>
class ColumnBlock {
 public:
  void place(const T* x, Int stride, Int depth, int count) {
    x_ = x;
    stride_ = stride;
    depth_ = depth;
    count_ = count;
  }

  void code(std::int8_t* codes, BFloat16* scales, std::int32_t* compensation) {
    Ints largest{};
    for (Int t = 0; t < depth_; ++t) largest = larger(largest, magnitude(at(t)));
    lanes_ = lane_scales(largest, scales);
    most_ = total_ = Ints{};
    put(codes, compensation, [&](Floats x) {
      const Ints bits = code_bits(x * lanes_.inverse), size = absolute(code_of(bits));
      most_ = larger(most_, size);
      total_ += size;
      return bits;
    });
  }

  // A bit a column.
  unsigned falls_back(int fallback) const {
    unsigned bits = 0;
    for (int n = 0; n < kLanes; ++n)
      bits |= depth_ * most_[n] > std::int64_t{fallback} * total_[n] ? 1u << n : 0u;
    return bits;
  }

  void code_second(unsigned columns, std::int8_t* codes, std::int32_t* compensation) {
    Ints keep{};
    for (int n = 0; n < kLanes; ++n) keep[n] = (columns >> n & 1u) != 0 ? -1 : 0;
    put(codes, compensation, [&](Floats x) {
      const Floats value =
          second_value(x, rounded(x * lanes_.inverse), lanes_.scale, lanes_.inverse);
      return code_bits(reinterpret_cast<Floats>(reinterpret_cast<Ints>(value) & keep));
    });
  }

 private:
  ANABATIC_INLINE Floats at(Int t) const { return load(x_ + t * stride_, count_); }

  // Units of four rows' int8 values, whose lowest bytes `bits` gives.
  template <class Bits>
  ANABATIC_INLINE void put(std::int8_t* codes, std::int32_t* compensation, Bits&& bits) {
    Ints sum{};
    for (Int t = 0; t < depth_; t += kInt8Unit, codes += kPanelBytes) {
      Words word{};
      for (int e = 0; e < kInt8Unit && t + e < depth_; ++e) {
        const Ints finite = reinterpret_cast<Ints>(at(t + e)) & lanes_.is_finite;
        const Ints code = bits(reinterpret_cast<Floats>(finite));
        sum += code_of(code);
        word |= (reinterpret_cast<Words>(code) & 0xFFu) << 8 * e;
      }
      std::memcpy(codes, &word, sizeof word);
    }
    if (compensation == nullptr) return;
    sum *= kCompensation;
    std::memcpy(compensation, &sum, sizeof sum);
  }

  const T* x_ = nullptr;
  Int stride_ = 0, depth_ = 0;
  int count_ = 0;
  LaneScales lanes_{};
  Ints most_{}, total_{};
};

template <class T>
void code_columns(const Int8Source& x, Int first, Int last, int fallback, const Int8Lines& to) {
  const Int units = int8_units(x.rows), blocks = int8_blocks(x.rows);
  constexpr int kGroups = static_cast<int>(kInt8Panel) / kLanes;
  ColumnBlock<T> groups[kGroups];
  for (Int panel = first; panel < last; ++panel)
    for (Int b = 0; b < blocks; ++b) {
      const Int t = b * kInt8Block;
      const Int codes = (panel * units + t / kInt8Unit) * kPanelBytes;
      unsigned columns = 0;  // that fall back
      for (int g = 0; g < kGroups; ++g) {
        const Int column = panel * kInt8Panel + g * kLanes;
        const Int count = smaller(kLanes, x.columns - column);
        const Int line = (panel * blocks + b) * kInt8Panel + g * kLanes;
        groups[g].place(row_of<T>(x, t) + column, x.stride, smaller(kInt8Block, x.rows - t),
                        count > 0 ? static_cast<int>(count) : 0);
        groups[g].code(to.codes + codes + g * kLanes * kInt8Unit, to.scales + line,
                       to.compensation != nullptr ? to.compensation + line : nullptr);
        if (to.second_codes != nullptr) columns |= groups[g].falls_back(fallback) << g * kLanes;
      }
      if (to.second_codes == nullptr) continue;
      to.falls_back[panel * blocks + b] = static_cast<std::uint16_t>(columns);
      for (int g = 0; g < kGroups && columns != 0; ++g)
        groups[g].code_second(
            columns >> g * kLanes, to.second_codes + codes + g * kLanes * kInt8Unit,
            to.second_compensation + (panel * blocks + b) * kInt8Panel + g * kLanes);
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

// Compensations of sixteen lines of a block.
void put_block(const Int8Lines& to, Int panel, Int block, Int blocks, const std::int32_t* sums) {
  const Int at = (panel * blocks + block) * kInt8Panel;
  if (to.compensation == nullptr) return;
  for (Int n = 0; n < kInt8Panel; ++n) to.compensation[at + n] = kCompensation * sums[n];
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
    put_block(to, panel, column / kInt8Block, blocks, sums);
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
    put_block(to, panel, row / kInt8Block, blocks, sums);
  }
}

template <class T>
void code_weights(const Int8Source& w, Int first, Int last, const Int8Lines* forward,
                  const Int8Lines* transposed) {
  Tile tile;
  for (Int row = first * kInt8Block; row < last * kInt8Block && row < w.rows; row += kInt8Block)
    for (Int column = 0; column < w.columns; column += kInt8Block) {
      code_tile<T>(w, row, column, tile);
      const Int at = row / kInt8Block * int8_blocks(w.columns) + column / kInt8Block;
      for (const Int8Lines* to : {forward, transposed})
        if (to != nullptr) to->scales[at] = tile.scale;
      if (forward != nullptr) put_rows(w, tile, row, column, *forward);
      if (transposed != nullptr) put_columns(w, tile, row, column, *transposed);
    }
}

#if ANABATIC_ISA_LANES == 16
constexpr const char* kIsa = "avx512f";
#elif ANABATIC_ISA_LANES == 8
constexpr const char* kIsa = "avx2";
#else
constexpr const char* kIsa = nullptr;
#endif

constexpr Int8Coding kCoding{
    .isa = kIsa,
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
