// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/adamw_update.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"
#include "tensor/dynamic_map.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

ANABATIC_INLINE Doubles to_doubles(const float* p) {
  FewFloats x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Doubles);
}

// Of the elements of one block, in double.
template <class T>
double sum_squares_of(const T* x, std::int64_t count) {
  constexpr int kHalf = kLanes / 2;
  Doubles sums[2] = {};
  for_lanes(0, count, [&](std::int64_t i, int n) {
    float lanes[kLanes];
    store(lanes, load(x + i, n));
    for (int half = 0; half < 2; ++half) {
      const Doubles value = to_doubles(lanes + half * kHalf);
      sums[half] += value * value;
    }
  });
  return sum_lanes(sums[0] + sums[1]);
}

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

ANABATIC_INLINE Ints load_codes(const std::uint8_t* p, int count) {
  Bytes x{};
  if (count == kLanes)
    std::memcpy(&x, p, sizeof x);
  else
    for (int i = 0; i < count; ++i) x[i] = p[i];
#if ANABATIC_ISA_LANES == 8  // g++ 12 widens by halves
  std::int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits)));
#else
  return __builtin_convertvector(x, Ints);
#endif
}
// The lowest byte of each.
ANABATIC_INLINE void store_codes(std::uint8_t* p, Ints x, int count) {
  x &= 0xFF;
#if ANABATIC_ISA_LANES == 8
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(x), _mm256_setzero_si256());
  const __m128i words = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  const std::int64_t bits = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
  Bytes bytes;
  std::memcpy(&bytes, &bits, sizeof bytes);
#else
  const Bytes bytes = __builtin_convertvector(x, Bytes);
#endif
  if (count == kLanes)
    std::memcpy(p, &bytes, sizeof bytes);
  else
    for (int i = 0; i < count; ++i) p[i] = bytes[i];
}

#if ANABATIC_ISA_LANES == 8
// The lowest bytes of two rows of 16.
ANABATIC_INLINE void store_two_rows(std::uint8_t* p, std::int64_t stride, Ints a, Ints b, Ints c,
                                    Ints d) {
  const auto words = [](Ints low, Ints high) {
    return _mm256_packus_epi32(reinterpret_cast<__m256i>(low & 0xFF),
                               reinterpret_cast<__m256i>(high & 0xFF));
  };
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words(a, b), words(c, d)),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(bytes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + stride), _mm256_extracti128_si256(bytes, 1));
}
#endif

// Of 256 floats.
ANABATIC_INLINE Floats gather(const float* table, Ints at) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_i32gather_ps(reinterpret_cast<__m512i>(at), table, 4);
#elif ANABATIC_ISA_LANES == 8
  return _mm256_i32gather_ps(table, reinterpret_cast<__m256i>(at), 4);
#else
  Floats x;
  for (int i = 0; i < kLanes; ++i) x[i] = table[at[i]];
  return x;
#endif
}
// Of 8 floats, in registers.
ANABATIC_INLINE Floats look_up(const float* table, Ints at) {
#if ANABATIC_ISA_LANES == 4
  return __builtin_shuffle(load(table), load(table + 4), at);
#else
  return __builtin_shuffle(load(table), at);
#endif
}

ANABATIC_INLINE Floats magnitude(Floats x) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7FFFFFFF);
}

// quantize() of each lane.
template <bool kSigned>
ANABATIC_INLINE Ints quantize(const DynamicMap& map, Floats x, float inverse) {
  const Floats largest = broadcast(1.0f);
  Floats y = magnitude(x) * inverse;
  y = y <= largest ? y : largest;
  // The bits of a float are nearly its logarithm: half a decade less has reached as many
  // thresholds, or one too few.
  const Floats log10 = __builtin_convertvector(reinterpret_cast<Ints>(y), Floats) *
                           (0.30103f / static_cast<float>(1 << 23)) +
                       (7.5f - 127 * 0.30103f);
  const Ints estimate = __builtin_convertvector(max(log10, Floats{}), Ints);
  const Ints reached = estimate - (y >= look_up(map.next.data(), estimate));
  const Floats place =
      (y - look_up(map.origins.data(), reached)) * look_up(map.rates.data(), reached);
  const Ints power = (Ints{} + 1) << reached;
  const Ints first = kSigned ? power >> 1 : power - 1, last = kSigned ? power - 1 : 2 * power - 2;
  Ints code = first + __builtin_convertvector(place, Ints);
  code = code < last ? code : last;
  const Ints is_one = y >= map.thresholds[7];
  if constexpr (!kSigned) return (is_one ? Ints{} + 255 : code) & (magnitude(x) >= 0x1.0p-126f);
  const Ints is_negative = reinterpret_cast<Ints>(x) >> 31;
  code = (is_one & ~is_negative) != 0 ? Ints{} + 128 : code;
  return (code ^ is_negative) - is_negative;
}

// 8-bit moments of a tile of 16 by 16, with rows of `stride` codes.
struct Tile {
  std::uint8_t* codes;
  float* scale;
  std::int64_t stride, rows, columns;
};

constexpr std::int64_t kTileElements = kBlockSide * kBlockSide;

// Zero beyond the columns.
ANABATIC_INLINE void widen(const DynamicMap& map, const Tile& tile, float* values) {
  const float scale = *tile.scale;
  for (std::int64_t row = 0; row < tile.rows; ++row)
#pragma GCC unroll 4
    for (int i = 0; i < kBlockSide; i += kLanes) {
      const int count = static_cast<int>(std::clamp<std::int64_t>(tile.columns - i, 0, kLanes));
      store(
          values + row * kBlockSide + i,
          gather(map.values.data(), load_codes(tile.codes + row * tile.stride + i, count)) * scale);
    }
}

template <bool kSigned>
ANABATIC_INLINE void narrow(const DynamicMap& map, const Tile& tile, const float* values) {
  Floats most{};
  for (std::int64_t i = 0; i < tile.rows * kBlockSide; i += kLanes)
    most = max(magnitude(load(values + i)), most);
  const float scale = max_lanes(most), inverse = inverse_scale(scale);
  *tile.scale = scale < 0x1.0p-126f ? 0.0f : scale;
  const auto codes_at = [&](std::int64_t row, int i) {
    return quantize<kSigned>(map, load(values + row * kBlockSide + i), inverse);
  };
  std::int64_t row = 0;
#if ANABATIC_ISA_LANES == 8
  for (; tile.columns == kBlockSide && row + 2 <= tile.rows; row += 2)
    store_two_rows(tile.codes + row * tile.stride, tile.stride, codes_at(row, 0), codes_at(row, 8),
                   codes_at(row + 1, 0), codes_at(row + 1, 8));
#endif
  for (; row < tile.rows; ++row)
    for (int i = 0; i < kBlockSide; i += kLanes) {
      const int count = static_cast<int>(std::clamp<std::int64_t>(tile.columns - i, 0, kLanes));
      store_codes(tile.codes + row * tile.stride + i, codes_at(row, i), count);
    }
}

// AdamW with moments in 8 bits (tensor/dynamic_map.h): a tile is widened to f32, updated as any
// other, and rounded with the scale of what it holds now. In panels `begin` is a multiple of 16.
template <bool kSplit>
struct BlockAdamW {
  using Weight = typename AdamW<kSplit, false>::Weight;
  static constexpr std::size_t kFirstMoment = Places<kSplit>::kFirst;  // of outputs
  static constexpr bool kHalfMoments = false, kBlocks = true;

  AdamW<kSplit, false> wide;
  std::uint8_t* codes[2];
  float* scales[2];
  const DynamicMap& map1 = signed_map();
  const DynamicMap& map2 = unsigned_map();

  explicit BlockAdamW(const Arguments& args) : wide(args) {
    constexpr std::size_t kFirst = Places<kSplit>::kFirst;
    for (std::size_t i = 0; i < 2; ++i) {
      codes[i] = args.outputs[kFirst + i].template as<std::uint8_t>();
      scales[i] = args.outputs[args.outputs.size() - 2 + i].template as<float>();
    }
  }

  // Columns [column, column + count) of a band, `column` a multiple of 16.
  void run(const Band& band, std::int64_t column, std::int64_t count, BFloat16* copy,
           std::int64_t stride) const {
    const std::int64_t across = ceil_div(band.width, kBlockSide);
    for (std::int64_t i = 0; i < count; i += kBlockSide) {
      const std::int64_t first = band.first + column + i, columns = std::min(kBlockSide, count - i);
      const Tile tile{.codes = nullptr,
                      .scale = nullptr,
                      .stride = band.width,
                      .rows = band.rows,
                      .columns = columns};
      update(tile, first, band.index * across + (column + i) / kBlockSide,
             [&](const AdamW<kSplit, false>& in_f32) {
               for (std::int64_t row = 0; row < band.rows; ++row) {
                 const std::int64_t at = first + row * band.width;
                 in_f32.run(at, at + columns, copy == nullptr ? nullptr : copy + row * stride + i,
                            at - row * kBlockSide);
               }
             });
    }
  }

  void run(const Panel& panel, std::int64_t begin, std::int64_t end, BFloat16* copy) const {
    const std::int64_t across = ceil_div(panel.depth, kBlockSide);
    for (std::int64_t k = begin; k < end; k += kBlockSide) {
      const Tile tile{.codes = nullptr,
                      .scale = nullptr,
                      .stride = kBlockSide,
                      .rows = std::min(kBlockSide, end - k),
                      .columns = kBlockSide};
      Panel place = panel;
      place.moments = -k * kBlockSide;
      update(tile, panel.wide + k * kBlockSide, panel.index * across + k / kBlockSide,
             [&](const AdamW<kSplit, false>& in_f32) {
               in_f32.run(place, k, k + tile.rows,
                          copy == nullptr ? nullptr : copy + (k - begin) * kPanelColumns);
             });
    }
  }

 private:
  // Calls body with an update whose moments are those of the tile at that code and scale, in f32.
  template <class Body>
  ANABATIC_INLINE void update(Tile tile, std::int64_t code, std::int64_t scale, Body&& body) const {
    alignas(64) float values[2][kTileElements];
    Tile tiles[2] = {tile, tile};
    for (std::size_t i = 0; i < 2; ++i) {
      tiles[i].codes = codes[i] + code;
      tiles[i].scale = scales[i] + scale;
    }
    widen(map1, tiles[0], values[0]);
    widen(map2, tiles[1], values[1]);
    AdamW<kSplit, false> in_f32 = wide;
    in_f32.moments[0] = values[0];
    in_f32.moments[1] = values[1];
    body(in_f32);
    if (!wide.finite) return;
    narrow<true>(map1, tiles[0], values[0]);
    narrow<false>(map2, tiles[1], values[1]);
  }
};

static_assert(kBlockSide == kPanelColumns && kBlockSide % kLanes == 0);

// Elements of a parameter above which its second packing bypasses the caches: nothing reads it
// before the rest of the update has passed through them.
constexpr std::int64_t kStreamedElements = std::int64_t{1} << 18;

// One task updates 16 rows, so many columns at a time that what the packings read is still near.
template <class Update, class To, bool kStreamed>
void sweep(const Arguments& args) {
  constexpr std::int64_t kColumns = 512;
  const Update update(args);
  const TensorView &parameter = args.outputs[0], &packed = args.outputs[3],
                   &transposed = args.outputs[4];
  const PanelShape shape = panel_shape(*packed.type), turned = panel_shape(*transposed.type);
  const std::int64_t rows = parameter.type->dim(-2), width = columns(parameter);
  const std::int64_t blocks = ceil_div(rows, kPanelColumns);
  const std::int64_t matrices = parameter.type->ndim() == 3 ? parameter.type->dim(0) : 1;
  args.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) BFloat16 copy[kRounds ? kPanelColumns * kColumns : 1];
    const std::int64_t matrix = task / blocks, begin = task % blocks * kPanelColumns;
    const std::int64_t end = std::min(rows, begin + kPanelColumns);
    const std::int64_t first = (matrix * rows + begin) * width;
    const Band band{.first = first, .width = width, .rows = end - begin, .index = task};
    To* panel = packed.as<To>() + matrix * shape.num_elements() +
                begin / kPanelColumns * shape.panel_elements();
    To* panels = transposed.as<To>() + matrix * turned.num_elements();
    for (std::int64_t k = 0; k < width; k += kColumns) {
      const std::int64_t count = std::min(kColumns, width - k);
      update.run(band, k, count, kRounds ? copy : nullptr, kColumns);
      const To* source = nullptr;
      std::int64_t stride = kColumns;
      if constexpr (kRounds) {
        source = copy;
      } else {
        source = parameter.as<const float>() + first + k;
        stride = width;
      }
      pack_panel(panel + k * kPanelColumns, source, stride, end - begin, count);
      pack_depth<kStreamed>(panels + k / kPanelColumns * turned.panel_elements(),
                            turned.panel_elements(), count, source, stride, begin, end);
    }
    if (kStreamed) stream_end();
  });
}

// Of a state: bytes that a call's watch is told of.
struct Part {
  std::int64_t first, bytes;
};

// Calls body(output, part) for each state beside the parameter that an update holds.
template <class Update, class Body>
ANABATIC_INLINE void for_states(Part low, Part moments, Body&& body) {
  for (std::size_t i = 1; i < Update::kFirstMoment + 2; ++i)
    body(i, i < Update::kFirstMoment ? low : moments);
}

// Runs body, which updates these parts of states, with the call's watch told of them.
template <class Update, class Body>
void run_watched(const Arguments& args, Part low, Part moments, Body&& body) {
  for_states<Update>(low, moments, [&](std::size_t output, Part part) {
    args.watch->before(output, part.first, part.bytes);
  });
  body();
  for_states<Update>(low, moments, [&](std::size_t output, Part part) {
    args.watch->after(output, part.first, part.bytes);
  });
}

// The same for rows [begin, end) of the panel `held` of `depth` rows of those that states hold
// here, which body(sums) sums as they pass, but where the parts do not lie in one block of the
// watch.
template <class Update, class Body>
void run_watched_panel(const Arguments& args, std::int64_t held, std::int64_t depth,
                       std::int64_t begin, std::int64_t end, Body&& body) {
  const auto part_of = [&](bool in_pairs) {
    const std::int64_t row_bytes = kPanelColumns * (in_pairs ? 2 : 4);
    const std::int64_t rows = in_pairs ? round_up(depth, 2) : depth;
    return Part{(held * rows + begin) * row_bytes,
                ((end == depth ? rows : end) - begin) * row_bytes};
  };
  const auto lies_in_block = [](Part part) {
    return part.first / ByteWatch::kBlockBytes ==
           (part.first + part.bytes - 1) / ByteWatch::kBlockBytes;
  };
  const Part wide = part_of(false), half = part_of(true);
  const Part moments = Update::kHalfMoments ? half : wide;
  if (!lies_in_block(wide) || !lies_in_block(half))
    return run_watched<Update>(args, half, moments, [&] { body(nullptr); });
  PanelSums sums{.wide = (held * depth) * kPanelColumns * 4 / kWordBytes,
                 .half = held * round_up(depth, 2) * kPanelColumns * 2 / kWordBytes};
  body(&sums);
  for_states<Update>(half, moments, [&](std::size_t output, Part part) {
    const WordSums* passes =
        output < Update::kFirstMoment ? sums.low : sums.moments[output - Update::kFirstMoment];
    args.watch->summed(output, part.first, part.bytes, passes[0].total(), passes[1].total());
  });
}

// Every state in panels: one task updates a few hundred rows of one panel, a few at a time, which
// the packings read while they are near. `packed` and `transposed` may be null.
template <class Update, class To, bool kStreamed>
void sweep_panels(const Arguments& args, const TensorView* packed, const TensorView* transposed) {
  constexpr std::int64_t kTaskRows = 512, kRows = 32;
  const Update update(args);
  const TensorType& type = *args.outputs[0].type;
  const PanelShape shape = panel_shape(DType::kFloat32, type.dim(-2), type.dim(-1), false);
  const PanelShape plain = packed != nullptr ? panel_shape(*packed->type) : shape;
  const PanelShape turned = transposed != nullptr ? panel_shape(*transposed->type) : shape;
  const bool is_packed = packed != nullptr || transposed != nullptr;
  const std::int64_t half_elements = round_up(shape.depth, 2) * kPanelColumns;
  const Stretch stretch =
      stretch_of(type, *args.outputs[Update::kFirstMoment].type, *args.attributes);
  const std::int64_t parts = ceil_div(shape.depth, kTaskRows);
  args.team->for_tasks((stretch.end - stretch.begin) * parts, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) BFloat16 copy[kRounds ? kRows * kPanelColumns : 1];
    const std::int64_t panel = stretch.begin + task / parts, begin = task % parts * kTaskRows;
    const std::int64_t matrix = panel / shape.num_panels();
    const std::int64_t column = panel % shape.num_panels() * kPanelColumns;
    const std::int64_t columns = std::min(kPanelColumns, shape.columns - column);
    const PanelTargets<To> targets{
        .panel = packed != nullptr ? packed->as<To>() + panel * plain.panel_elements() : nullptr,
        .transposed =
            transposed != nullptr ? transposed->as<To>() + matrix * turned.num_elements() : nullptr,
        .panel_elements = turned.panel_elements(),
        .first_column = column,
        .columns = columns};
    const std::int64_t wide = panel * shape.panel_elements(), half = panel * half_elements;
    const Panel place{
        .wide = wide,
        .half = half,
        .moments = Update::kHalfMoments ? half : wide,
        .depth = shape.depth,
        .columns = columns,
        .element = static_cast<std::uint32_t>((matrix * shape.columns + column) * shape.depth),
        .stride = static_cast<std::uint32_t>(shape.depth),
        .index = panel};
    const std::int64_t end = std::min(shape.depth, begin + kTaskRows);
    const auto update_rows = [&](PanelSums* sums) {
      for (std::int64_t k = begin; k < end; k += kRows) {
        const std::int64_t rows = std::min(kRows, end - k);
        BFloat16* const to = kRounds && is_packed ? copy : nullptr;
        if constexpr (!Update::kBlocks) {
          if (sums != nullptr)
            update.run(place, k, k + rows, to, *sums);
          else
            update.run(place, k, k + rows, to);
        } else {
          update.run(place, k, k + rows, to);
        }
        if constexpr (kRounds)
          targets.template write<kStreamed>(copy, k, k + rows);
        else
          targets.template write<kStreamed>(
              args.outputs[0].as<float>() + place.wide + k * kPanelColumns, k, k + rows);
      }
    };
    if (Update::kBlocks || args.watch == nullptr)
      update_rows(nullptr);
    else
      run_watched_panel<Update>(args, panel - stretch.begin, shape.depth, begin, end, update_rows);
    if (kStreamed) stream_end();
  });
}

template <class Update, class To>
void run_sweep(const Arguments& args, const TensorView* packed, const TensorView* transposed) {
  const bool streams = size(args.outputs[0]) >= kStreamedElements;
  if (is_panels(args.outputs[0].type->layout))
    streams ? sweep_panels<Update, To, true>(args, packed, transposed)
            : sweep_panels<Update, To, false>(args, packed, transposed);
  else if constexpr (!std::is_same_v<typename Update::Weight, BFloat16>)
    streams ? sweep<Update, To, true>(args) : sweep<Update, To, false>(args);
}

// Without packings.
template <class Update>
void run_alone(const Arguments& args) {
  using To = typename Update::Weight;
  if (is_panels(args.outputs[0].type->layout))
    return sweep_panels<Update, To, false>(args, nullptr, nullptr);
  const Update update(args);
  if constexpr (Update::kBlocks) {
    const std::int64_t rows = args.outputs[0].type->dim(-2), width = columns(args.outputs[0]);
    const std::int64_t bands = ceil_div(rows, kBlockSide);
    args.team->for_tasks(size(args.outputs[0]) / (rows * width) * bands, [&](std::int64_t task) {
      const std::int64_t row = task % bands * kBlockSide;
      const Band band{.first = (task / bands * rows + row) * width,
                      .width = width,
                      .rows = std::min(kBlockSide, rows - row),
                      .index = task};
      update.run(band, 0, width, nullptr, 0);
    });
  } else {
    const Stretch stretch = stretch_of(*args.outputs[0].type,
                                       *args.outputs[Update::kFirstMoment].type, *args.attributes);
    args.team->for_range(
        stretch.end - stretch.begin, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
          if (args.watch == nullptr) return update.run(stretch.begin + begin, stretch.begin + end);
          constexpr std::int64_t kStep = 1024;  // the nearest cache holds it
          for (std::int64_t i = begin; i < end; i += kStep) {
            const std::int64_t count = std::min(kStep, end - i);
            const auto part = [&](std::int64_t item) { return Part{i * item, count * item}; };
            run_watched<Update>(args, part(2), part(Update::kHalfMoments ? 2 : 4),
                                [&] { update.run(stretch.begin + i, stretch.begin + i + count); });
          }
        });
  }
}

// Calls body with a null pointer to the update that fits the moments.
template <bool kSplit, class Body>
void with_update(const Arguments& args, Body&& body) {
  if (args.outputs[0].type->num_elements() == 0) return;
  const DType moments = args.outputs[Places<kSplit>::kFirst].type->dtype;
  if (moments == DType::kUInt8)
    body(static_cast<BlockAdamW<kSplit>*>(nullptr));
  else if (moments == DType::kBFloat16)
    body(static_cast<AdamW<kSplit, true>*>(nullptr));
  else
    body(static_cast<AdamW<kSplit, false>*>(nullptr));
}

}  // namespace

// Workspace: double of each block.
void sum_squares(const Arguments& args) {
  const std::int64_t count = stored_elements(*args.inputs[0].type),
                     num_blocks = ceil_div(count, kElementBlock);
  auto* partials = reinterpret_cast<double*>(args.workspace);
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const T* x = args.inputs[0].as<const T>();
    args.team->for_range(num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block)
        partials[block] = sum_squares_of(x + block * kElementBlock,
                                         std::min(kElementBlock, count - block * kElementBlock));
    });
  });
  double sum = 0;
  for (std::int64_t block = 0; block < num_blocks; ++block) sum += partials[block];
  *args.outputs[0].as<double>() = sum;
}

void adamw(const Arguments& args) {
  with_update<false>(args, [&]<class Update>(Update*) { run_alone<Update>(args); });
}

void adamw_pack(const Arguments& args) {
  with_update<false>(args, [&]<class Update>(Update*) {
    with_float_type(args.outputs[3].type->dtype, [&]<class To>(To*) {
      run_sweep<Update, To>(args, &args.outputs[3], &args.outputs[4]);
    });
  });
}

// States in panels only.
void adamw_pack_transposed(const Arguments& args) {
  with_update<false>(args, [&]<class Update>(Update*) {
    with_float_type(args.outputs[3].type->dtype,
                    [&]<class To>(To*) { run_sweep<Update, To>(args, nullptr, &args.outputs[3]); });
  });
}

void adamw_split(const Arguments& args) {
  with_update<true>(args, [&]<class Update>(Update*) { run_alone<Update>(args); });
}

// States in panels only.
void adamw_split_pack_transposed(const Arguments& args) {
  with_update<true>(args, [&]<class Update>(Update*) {
    run_sweep<Update, BFloat16>(args, nullptr, &args.outputs[4]);
  });
}

void adamw_split_slice_pack_transposed(const Arguments& args) { adamw_split_pack_transposed(args); }

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
