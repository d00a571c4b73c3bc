// SPDX-License-Identifier: Apache-2.0
// Int8 values and products of every instruction set against the definition, bit by bit; the
// definition against exact products, within the bound; and faults that the bound must find.
#include "kernels/ref/int8_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "device/denormals.h"
#include "device/thread_team.h"
#include "kernels/cpu/int8/coding.h"
#include "support/rows_under_test.h"
#include "support/tolerance.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;
using ref::CodedLines;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::size_t at(Int i) { return static_cast<std::size_t>(i); }

// Memory of one alignment, with 64 bytes after it.
template <class T>
struct Aligned {
  std::vector<T> storage;
  T* data = nullptr;
  void resize(Int count) {
    storage.assign(at(count) + 128 / sizeof(T), T{});
    data = reinterpret_cast<T*>(round_up(reinterpret_cast<std::uintptr_t>(storage.data()), 64));
  }
};

struct Storage {
  Aligned<std::int8_t> codes, second_codes;
  Aligned<std::int32_t> compensation, second_compensation;
  Aligned<BFloat16> scales;
  Aligned<std::uint16_t> falls_back;
  Int8Lines lines;

  Storage(Int num_lines, Int depth, bool in_panels, bool has_second) {
    const Int panels = ceil_div(num_lines, kInt8Panel), blocks = int8_blocks(depth);
    const Int count = in_panels ? panels * int8_units(depth) * 64 : num_lines * depth;
    const Int scale_count = in_panels ? panels * blocks * 16 : num_lines * blocks;
    codes.resize(count);
    scales.resize(scale_count);
    lines = {.codes = codes.data,
             .scales = scales.data,
             .line_stride = in_panels ? 0 : std::max(depth, Int{1}),  // 0 means panels
             .scale_stride = in_panels ? 0 : blocks};
    if (in_panels) {
      compensation.resize(scale_count);
      lines.compensation = compensation.data;
    }
    if (!has_second) return;
    second_codes.resize(count);
    second_compensation.resize(scale_count);
    falls_back.resize(scale_count);
    lines.second_codes = second_codes.data;
    lines.second_compensation = second_compensation.data;
    lines.falls_back = falls_back.data;
  }
  Storage(const Storage&) = delete;

  Int code_at(Int line, Int k, Int depth) const {
    if (!lines.in_panels()) return line * lines.line_stride + k;
    return line / 16 * int8_units(depth) * 64 + k / 4 * 64 + line % 16 * 4 + k % 4;
  }
  Int scale_at(Int line, Int b, Int depth) const {
    if (!lines.in_panels()) return line * lines.scale_stride + b;
    return (line / 16 * int8_blocks(depth) + b) * 16 + line % 16;
  }
  bool falls_back_at(Int line, Int b, Int depth) const {
    if (!lines.in_panels()) return lines.falls_back[scale_at(line, b, depth)] != 0;
    return (lines.falls_back[line / 16 * int8_blocks(depth) + b] >> line % 16 & 1) != 0;
  }
};

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::vector<const Int8Engine*> engines() {
  const spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  std::vector<const Int8Engine*> found;
  for (const Int8Engine* engine : {int8_portable(), int8_avx2(), int8_avx512_vnni()})
    if (engine != nullptr && (engine->isa == nullptr || device.has(engine->isa)))
      found.push_back(engine);
  return found;
}

std::vector<const Int8Coding*> codings() {
  const spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  std::vector<const Int8Coding*> found{&portable::int8_coding()};
#if defined(__x86_64__)
  if (device.has("avx2")) found.push_back(&avx2::int8_coding());
  if (device.has("avx512f")) found.push_back(&avx512::int8_coding());
#endif
  return found;
}

// Deviates, some blocks of which are ruled by one element, and the odd cases.
std::vector<float> values(Int lines, Int depth, DType dtype, std::uint64_t stream) {
  std::vector<float> x(at(lines * depth));
  for (Int i = 0; i < lines; ++i)
    for (Int k = 0; k < depth; ++k) {
      const auto n = static_cast<std::uint64_t>(i * depth + k);
      float value = static_cast<float>(random_below(7, stream, n, 1 << 20)) * 0x1p-19f - 1.0f;
      switch ((i + 3 * (k / kInt8Block)) % 11) {
        case 1:
          value *= k % kInt8Block == 5 ? 300.0f : 1.0f;  // an outlier
          break;
        case 3:
          value *= 1e-6f;
          break;
        case 4:
          value = k % 2 == 0 ? 0.0f : -0.0f;
          break;
        case 6:
          value = k % kInt8Block == 2 ? value : 0.0f;
          break;
        case 7:
          value *= 0x1p-130f;  // subnormal
          break;
        default:
          break;
      }
      x[at(i * depth + k)] = dtype == DType::kBFloat16 ? to_float(to_bfloat16(value)) : value;
    }
  return x;
}

// A matrix in memory, as it is or transposed.
struct Source {
  std::vector<float> floats;
  std::vector<BFloat16> narrow;
  Int8Source source;
  Source(const std::vector<float>& x, Int lines, Int depth, DType dtype, bool by_columns) {
    for (Int r = 0; r < (by_columns ? depth : lines); ++r)
      for (Int c = 0; c < (by_columns ? lines : depth); ++c) {
        floats.push_back(x[at(by_columns ? c * depth + r : r * depth + c)]);
        narrow.push_back(to_bfloat16(floats.back()));
      }
    source = {.data = dtype == DType::kFloat32 ? reinterpret_cast<std::byte*>(floats.data())
                                               : reinterpret_cast<std::byte*>(narrow.data()),
              .dtype = dtype,
              .rows = by_columns ? depth : lines,
              .columns = by_columns ? lines : depth,
              .stride = by_columns ? lines : depth};
  }
  Source(const Source&) = delete;
};

void expect_codes(const Storage& got, const CodedLines& want, const std::string& name) {
  for (Int i = 0; i < want.lines; ++i)
    for (Int b = 0; b < want.blocks(); ++b) {
      const std::size_t block = at(i * want.blocks() + b);
      const float scale = to_float(got.lines.scales[got.scale_at(i, b, want.depth)]);
      ASSERT_TRUE(same(scale, want.scales[block])) << name << " scale of " << i << ", " << b;
      const bool has_second = got.lines.second_codes != nullptr;
      ASSERT_EQ(has_second && got.falls_back_at(i, b, want.depth), want.falls_back[block]) << name;
      std::int32_t sum = 0, second_sum = 0;
      for (Int k = b * 128; k < std::min(want.depth, b * 128 + 128); ++k) {
        const Int to = got.code_at(i, k, want.depth);
        ASSERT_EQ(got.lines.codes[to], want.codes[at(i * want.depth + k)]) << name << " " << k;
        sum += got.lines.codes[to];
        if (!want.falls_back[block]) continue;
        ASSERT_EQ(got.lines.second_codes[to], want.second_codes[at(i * want.depth + k)]) << name;
        second_sum += got.lines.second_codes[to];
      }
      if (!got.lines.in_panels()) continue;
      ASSERT_EQ(got.lines.compensation[got.scale_at(i, b, want.depth)], -128 * sum) << name;
      if (!want.falls_back[block]) continue;
      ASSERT_EQ(got.lines.second_compensation[got.scale_at(i, b, want.depth)], -128 * second_sum);
    }
}

void expect_product(const Int8Product& call, const std::vector<float>& want, DType dtype,
                    const std::string& name) {
  for (const Int8Engine* engine : engines())
    for (const int threads : {1, 2, 3}) {
      device::ThreadTeam team(threads);
      Aligned<float> c;
      const Int stride = round_up(call.columns, Int{16}) + 16;
      c.resize(call.rows * stride);
      for (Int i = 0; i < call.rows * stride; ++i) c.data[i] = 3.0f;
      Int8Product product = call;
      product.c = reinterpret_cast<std::byte*>(c.data);
      product.c_dtype = dtype;
      product.c_stride = stride;
      run_int8_product(*engine, product, team);
      for (Int i = 0; i < call.rows; ++i)
        for (Int j = 0; j < stride; ++j) {
          if (dtype == DType::kFloat32) {
            const float expected = j < call.columns ? want[at(i * call.columns + j)] : 3.0f;
            ASSERT_TRUE(same(c.data[i * stride + j], expected))
                << name << (engine->isa ? engine->isa : "portable") << " " << i << ", " << j << ": "
                << c.data[i * stride + j] << ", expected " << expected;
          } else if (j < call.columns) {
            const float got = to_float(reinterpret_cast<BFloat16*>(c.data)[i * stride + j]);
            ASSERT_TRUE(same(got, to_float(to_bfloat16(want[at(i * call.columns + j)]))))
                << name << (engine->isa ? engine->isa : "portable") << " " << i << ", " << j;
          }
        }
    }
}

std::vector<float> product_of(const CodedLines& a, const CodedLines& b, float before = 0) {
  std::vector<float> y(at(a.lines * b.lines), before);
  ref::add_int8_product(a, b, y);
  return y;
}

struct Sizes {
  Int rows, columns, depth;
};
constexpr Sizes kSizes[] = {{0, 16, 4},    {1, 1, 4},     {3, 50, 32},    {129, 17, 100},
                            {5, 160, 128}, {7, 100, 576}, {130, 49, 130}, {2, 3, 0}};

TEST(Int8Products, OfRowsByWeightsHaveTheBitsOfTheDefinition) {
  const device::DenormalsAreZero mode;
  for (const Sizes& n : kSizes)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const int fallback : {0, 16, 64, kNoFallback})
        for (const Int8Coding* coding : codings()) {
          const std::vector<float> x = values(n.rows, n.depth, dtype, 1),
                                   w = values(n.columns, n.depth, dtype, 2);
          const Source of_x(x, n.rows, n.depth, dtype, false),
              of_w(w, n.columns, n.depth, dtype, false);
          Storage a(n.rows, n.depth, false, true), b(n.columns, n.depth, true, false),
              transposed(n.depth, n.columns, true, false);
          coding->rows(of_x.source, 0, n.rows, fallback, a.lines);
          coding->weights(of_w.source, 0, ceil_div(n.columns, kInt8Block), &b.lines,
                          &transposed.lines);
          const CodedLines left = ref::code_lines(x, n.rows, n.depth, fallback),
                           right = ref::code_tiles(w, n.columns, n.depth);
          expect_codes(a, left, "rows ");
          expect_codes(b, right, "weights ");
          if (n.depth > 0) expect_codes(transposed, ref::transposed_tiles(right), "transposed ");
          if (HasFatalFailure()) return;
          const std::vector<float> want = product_of(left, right);
          const Int8Product call{
              .rows = n.rows, .columns = n.columns, .depth = n.depth, .a = a.lines, .b = b.lines};
          expect_product(call, want, dtype, "forward ");
          if (HasFatalFailure()) return;
        }
}

// dw [columns, rows] of dy and x, whose depth are tokens. x has second values.
TEST(Int8Products, OfTokensHaveTheBitsOfTheDefinitionAndGoOnFromTheBuffer) {
  const device::DenormalsAreZero mode;
  for (const Sizes& n : kSizes)
    for (const int fallback : {0, 64, kNoFallback})
      for (const Int8Coding* coding : codings()) {
        const DType dtype = DType::kBFloat16;
        const std::vector<float> dy = values(n.columns, n.depth, dtype, 3),
                                 x = values(n.rows, n.depth, dtype, 4);
        const Source of_dy(dy, n.columns, n.depth, dtype, true),
            of_x(x, n.rows, n.depth, dtype, true);
        Storage a(n.columns, n.depth, true, false), b(n.rows, n.depth, true, true);
        coding->columns(of_dy.source, 0, ceil_div(n.columns, kInt8Panel), kNoFallback, a.lines);
        coding->columns(of_x.source, 0, ceil_div(n.rows, kInt8Panel), fallback, b.lines);
        const CodedLines left = ref::code_lines(dy, n.columns, n.depth, kNoFallback),
                         right = ref::code_lines(x, n.rows, n.depth, fallback);
        expect_codes(a, left, "dy ");
        expect_codes(b, right, "x ");
        if (HasFatalFailure()) return;
        for (const bool adds : {false, true}) {
          const Int8Product call{.rows = n.columns,
                                 .columns = n.rows,
                                 .depth = n.depth,
                                 .a = a.lines,
                                 .b = b.lines,
                                 .accumulate = adds,
                                 .streams = !adds};
          expect_product(call, product_of(left, right, adds ? 3.0f : 0.0f), DType::kFloat32,
                         "weight gradient ");
          if (HasFatalFailure()) return;
        }
      }
}

TEST(Int8Products, AreNanWhereABlockIsNotFiniteAndNowhereElse) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const Int depth = 300;
    std::vector<float> x = values(5, depth, DType::kFloat32, 5),
                       w = values(20, depth, DType::kFloat32, 6);
    x[at(2 * depth + 290)] = bad;
    for (const Int8Coding* coding : codings()) {
      const Source of_x(x, 5, depth, DType::kFloat32, false),
          of_w(w, 20, depth, DType::kFloat32, false);
      Storage a(5, depth, false, true), b(20, depth, true, false);
      coding->rows(of_x.source, 0, 5, 0, a.lines);
      coding->weights(of_w.source, 0, 1, &b.lines, nullptr);
      const CodedLines left = ref::code_lines(x, 5, depth, 0),
                       right = ref::code_tiles(w, 20, depth);
      const std::vector<float> want = product_of(left, right);
      for (Int i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(want[at(i)]), i / 20 == 2);
      expect_codes(a, left, "with NaN ");
      expect_product({.rows = 5, .columns = 20, .depth = depth, .a = a.lines, .b = b.lines}, want,
                     DType::kFloat32, "NaN ");
    }
  }
}

// Whole numbers up to 127 whose blocks have scale 1 are their own int8 values.
TEST(Int8Products, OfWholeNumbersAreExact) {
  const Int lines = 6, depth = 300;
  std::vector<float> x(at(lines * depth)), w(at(lines * depth));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 40 == 0 ? 127.0f : static_cast<float>(random_below(1, 1, i, 255)) - 127.0f;
    w[i] = i % 40 == 0 ? -127.0f : static_cast<float>(random_below(1, 2, i, 255)) - 127.0f;
  }
  const std::vector<float> y =
      product_of(ref::code_lines(x, lines, depth, kNoFallback), ref::code_tiles(w, lines, depth));
  for (Int i = 0; i < lines; ++i)
    for (Int j = 0; j < lines; ++j) {
      double want = 0;
      for (Int k = 0; k < depth; ++k) want += double{x[at(i * depth + k)]} * w[at(j * depth + k)];
      EXPECT_EQ(y[at(i * lines + j)], want);
    }
}

// How many elements are off by more than the bound.
Int num_beyond(const std::vector<float>& got, const std::vector<float>& x,
               const std::vector<float>& w, const CodedLines& a, const CodedLines& b) {
  const std::vector<double> bounds = testing::int8_product_tolerances(
      {.values = x, .lines = a.lines, .depth = a.depth, .falls_back = a.falls_back},
      {.values = w, .lines = b.lines, .depth = b.depth, .tile_lines = kInt8Block}, DType::kFloat32);
  Int count = 0;
  for (Int i = 0; i < a.lines; ++i)
    for (Int j = 0; j < b.lines; ++j) {
      double want = 0;
      for (Int k = 0; k < a.depth; ++k)
        want += double{x[at(i * a.depth + k)]} * w[at(j * a.depth + k)];
      const double error = std::abs(got[at(i * b.lines + j)] - want);
      if (!(error <= bounds[at(i * b.lines + j)])) ++count;
    }
  return count;
}

TEST(Int8Products, StayWithinTheBoundAndFaultsDoNot) {
  const Int lines = 22, columns = 40, depth = 400;
  const std::vector<float> x = values(lines, depth, DType::kFloat32, 8);
  std::vector<float> w = values(columns, depth, DType::kFloat32, 9);
  // Their tiles share a scale, so no weight rules one.
  for (float& value : w) value = std::clamp(value, -1.0f, 1.0f);
  // Rows whose blocks are one outlier and many elements of almost half a step, by weights alike.
  std::vector<float> tuned = x;
  for (Int k = 0; k < depth; ++k) {
    tuned[at(k)] = k % kInt8Block == 0 ? 127.0f : 0.49f;
    w[at(k)] = 1.0f;
  }
  for (const int fallback : {0, 16, 64, kNoFallback}) {
    const CodedLines a = ref::code_lines(tuned, lines, depth, fallback),
                     b = ref::code_tiles(w, columns, depth);
    const auto beyond = [&](const CodedLines& left, const CodedLines& right) {
      return num_beyond(product_of(left, right), tuned, w, a, b);
    };
    EXPECT_EQ(beyond(a, b), 0) << fallback;
    CodedLines fault = a;  // the scale of the block before
    for (std::size_t i = 1; i < fault.scales.size(); ++i) fault.scales[i] = a.scales[i - 1];
    EXPECT_GT(beyond(fault, b), 0) << fallback;
    if (fallback == kNoFallback) continue;
    ASSERT_TRUE(a.falls_back[0]);
    // The second values twice.
    std::vector<float> twice = product_of(a, b);
    CodedLines only_second = a;
    std::fill(only_second.codes.begin(), only_second.codes.end(), std::int8_t{0});
    ref::add_int8_product(only_second, b, twice);
    EXPECT_GT(num_beyond(twice, tuned, w, a, b), 0) << fallback;
  }
  // Without compensations, where the engine needs them.
  const Source of_x(x, lines, depth, DType::kFloat32, false),
      of_w(w, columns, depth, DType::kFloat32, false);
  Storage left(lines, depth, false, false), right(columns, depth, true, false);
  portable::int8_coding().rows(of_x.source, 0, lines, kNoFallback, left.lines);
  portable::int8_coding().weights(of_w.source, 0, 1, &right.lines, nullptr);
  for (Int i = 0; i < 3 * int8_blocks(depth) * 16; ++i) right.lines.compensation[i] = 0;
  for (const Int8Engine* engine : engines()) {
    if (engine->isa == nullptr || std::string(engine->isa) != "avx512_vnni") continue;
    std::vector<float> y(at(lines * columns));
    device::ThreadTeam team(1);
    run_int8_product(*engine,
                     {.rows = lines,
                      .columns = columns,
                      .depth = depth,
                      .a = left.lines,
                      .b = right.lines,
                      .c = reinterpret_cast<std::byte*>(y.data()),
                      .c_stride = columns},
                     team);
    EXPECT_GT(num_beyond(y, x, w, ref::code_lines(x, lines, depth, kNoFallback),
                         ref::code_tiles(w, columns, depth)),
              0);
  }
}

}  // namespace
}  // namespace anabatic::kernels::cpu
