// SPDX-License-Identifier: Apache-2.0
// Int8 values and products of every instruction set against the definition, bit by bit; the
// definition against exact products, within the bound; and faults that the bound must find.
#include "kernels/ref/int8_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "device/denormals.h"
#include "int8_samples.h"
#include "support/tolerance.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;
using ref::CodedLines;
using samples::Aligned;
using samples::at;
using samples::Form;
using samples::int8_codings;
using samples::int8_engines;
using samples::int8_values;
using samples::name_of;
using samples::product_of;
using samples::same;
using samples::Source;
using samples::Storage;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_codes(const Storage& got, const CodedLines& want, const std::string& name) {
  const Int8Lines& lines = got.lines;
  for (Int i = 0; i < want.lines; ++i)
    for (Int b = 0; b < want.blocks(); ++b) {
      const std::size_t block = at(i * want.blocks() + b);
      const float scale = to_float(lines.scales[got.scale_at(i, b)]);
      ASSERT_TRUE(same(scale, want.scales[block])) << name << " scale of " << i << ", " << b;
      const bool has_second = lines.second_codes != nullptr;
      ASSERT_EQ(has_second && got.falls_back_at(i, b), want.falls_back[block]) << name;
      std::int32_t sum = 0, second_sum = 0;
      for (Int k = b * 128; k < std::min(want.depth, b * 128 + 128); ++k) {
        const Int to = got.code_at(i, k);
        ASSERT_EQ(lines.codes[to], want.codes[at(i * want.depth + k)]) << name << " " << k;
        sum += lines.codes[to];
        if (!want.falls_back[block]) continue;
        ASSERT_EQ(lines.second_codes[to], want.second_codes[at(i * want.depth + k)]) << name;
        second_sum += lines.second_codes[to];
      }
      if (!lines.in_panels) continue;
      ASSERT_EQ(lines.compensation[got.compensation_at(i, b)], -128 * sum) << name;
      if (!want.falls_back[block]) continue;
      ASSERT_EQ(lines.second_compensation[got.compensation_at(i, b)], -128 * second_sum);
    }
}

// A call into rows that have other elements after their columns.
void expect_product(const Gemm& call, const std::vector<float>& want, DType dtype,
                    const std::string& name) {
  for (const GemmEngine* engine : int8_engines())
    for (const int threads : {1, 2, 3}) {
      Aligned<float> c;
      const Int stride = round_up(call.columns, Int{16}) + 16;
      c.resize(call.rows * stride);
      for (Int i = 0; i < call.rows * stride; ++i) c.data[i] = 3.0f;
      Gemm gemm = call;
      gemm.c = reinterpret_cast<std::byte*>(c.data);
      gemm.c_dtype = dtype;
      gemm.c_stride = stride;
      samples::run_in_workspace(*engine, gemm, {gemm}, threads);
      for (Int i = 0; i < call.rows; ++i)
        for (Int j = 0; j < stride; ++j) {
          if (dtype == DType::kFloat32) {
            const float expected = j < call.columns ? want[at(i * call.columns + j)] : 3.0f;
            ASSERT_TRUE(same(c.data[i * stride + j], expected))
                << name << name_of(*engine) << " " << i << ", " << j << ": "
                << c.data[i * stride + j] << ", expected " << expected;
          } else if (j < call.columns) {
            const float got = to_float(reinterpret_cast<BFloat16*>(c.data)[i * stride + j]);
            ASSERT_TRUE(same(got, to_float(to_bfloat16(want[at(i * call.columns + j)]))))
                << name << name_of(*engine) << " " << i << ", " << j;
          }
        }
    }
}

void expect_counts(const CodingCounts& got, const CodingCounts& want) {
  EXPECT_EQ(got.elements, want.elements);
  EXPECT_EQ(got.zeroed, want.zeroed);
  EXPECT_EQ(got.blocks, want.blocks);
  EXPECT_EQ(got.fallbacks, want.fallbacks);
  EXPECT_EQ(got.largest, want.largest);
}

struct Sizes {
  Int rows, columns, depth;
};
constexpr Sizes kSizes[] = {{0, 16, 4},     {1, 1, 4},     {3, 50, 32},
                            {129, 17, 100}, {5, 160, 128}, {7, 100, 576},
                            {130, 49, 130}, {2, 3, 0},     {9, 70, 2100}};

TEST(Int8Products, OfRowsByWeightsHaveTheBitsOfTheDefinition) {
  const device::DenormalsAreZero mode;
  for (const Sizes& n : kSizes)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const int fallback : {0, 16, 64, kNoFallback})
        for (const Int8Coding* coding : int8_codings()) {
          const std::vector<float> x = int8_values(n.rows, n.depth, dtype, 1),
                                   w = int8_values(n.columns, n.depth, dtype, 2);
          const Source of_x(x, n.rows, n.depth, dtype, false),
              of_w(w, n.columns, n.depth, dtype, false);
          Storage a(n.rows, n.depth, Form::kRows, true), b(n.columns, n.depth, Form::kTiles, false),
              transposed(n.depth, n.columns, Form::kTiles, false, true);
          CodingCounts counts;
          coding->rows(of_x.source, 0, n.rows / 2, fallback, a.lines, &counts);
          coding->rows(of_x.source, n.rows / 2, n.rows, fallback, a.lines, &counts);
          coding->weights(of_w.source, 0, ceil_div(n.columns, kInt8Block), &b.lines,
                          &transposed.lines);
          const CodedLines left = ref::code_lines(x, n.rows, n.depth, fallback),
                           right = ref::code_tiles(w, n.columns, n.depth);
          expect_codes(a, left, "rows ");
          expect_counts(counts, ref::counts_of(left, x));
          expect_codes(b, right, "weights ");
          if (n.depth > 0) expect_codes(transposed, ref::transposed_tiles(right), "transposed ");
          if (HasFatalFailure()) return;
          const std::vector<float> want = product_of(left, right);
          const Gemm call{.rows = n.rows,
                          .columns = n.columns,
                          .depth = n.depth,
                          .a = of_x.left(fallback),
                          .b = b.weights()};
          expect_product(call, want, dtype, "forward ");
          if (HasFatalFailure()) return;
        }
}

// dw [columns, rows] of dy and x, whose depth are tokens. x has second values.
TEST(Int8Products, OfTokensHaveTheBitsOfTheDefinitionAndGoOnFromTheBuffer) {
  const device::DenormalsAreZero mode;
  for (const Sizes& n : kSizes)
    for (const int fallback : {0, 64, kNoFallback})
      for (const Int8Coding* coding : int8_codings()) {
        const DType dtype = DType::kBFloat16;
        const std::vector<float> dy = int8_values(n.columns, n.depth, dtype, 3),
                                 x = int8_values(n.rows, n.depth, dtype, 4);
        const Source of_dy(dy, n.columns, n.depth, dtype, true),
            of_x(x, n.rows, n.depth, dtype, true);
        Storage a(n.columns, n.depth, Form::kPanels, false),
            b(n.rows, n.depth, Form::kPanels, true);
        coding->columns(of_dy.source, 0, ceil_div(n.columns, kInt8Panel), kNoFallback, a.lines);
        coding->columns(of_x.source, 0, ceil_div(n.rows, kInt8Panel), fallback, b.lines);
        const CodedLines left = ref::code_lines(dy, n.columns, n.depth, kNoFallback),
                         right = ref::code_lines(x, n.rows, n.depth, fallback);
        expect_codes(a, left, "dy ");
        expect_codes(b, right, "x ");
        if (HasFatalFailure()) return;
        for (const bool adds : {false, true}) {
          const Gemm call{.rows = n.columns,
                          .columns = n.rows,
                          .depth = n.depth,
                          .a = of_dy.left(),
                          .b = of_x.right(fallback),
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
    std::vector<float> x = int8_values(5, depth, DType::kFloat32, 5),
                       w = int8_values(20, depth, DType::kFloat32, 6);
    x[at(2 * depth + 290)] = bad;
    for (const Int8Coding* coding : int8_codings()) {
      const Source of_x(x, 5, depth, DType::kFloat32, false),
          of_w(w, 20, depth, DType::kFloat32, false);
      Storage a(5, depth, Form::kRows, true), b(20, depth, Form::kTiles, false);
      CodingCounts counts;
      coding->rows(of_x.source, 0, 5, 0, a.lines, &counts);
      coding->weights(of_w.source, 0, 1, &b.lines, nullptr);
      const CodedLines left = ref::code_lines(x, 5, depth, 0),
                       right = ref::code_tiles(w, 20, depth);
      const std::vector<float> want = product_of(left, right);
      for (Int i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(want[at(i)]), i / 20 == 2);
      expect_codes(a, left, "with NaN ");
      expect_counts(counts, ref::counts_of(left, x));
      EXPECT_EQ(counts.largest >= std::bit_cast<std::uint32_t>(kInfinity), true);
      expect_product(
          {.rows = 5, .columns = 20, .depth = depth, .a = of_x.left(0), .b = b.weights()}, want,
          DType::kFloat32, "NaN ");
    }
  }
}

// By hand: of scale 1, a half rounds to 0, and a zero is no element.
TEST(Int8Products, CountElementsThatQuantiseToZero) {
  for (const Int8Coding* coding : int8_codings()) {
    std::vector<float> x(at(2 * 256), 0.0f);
    for (const auto& [place, value] :
         {std::pair{0, 127.0f}, std::pair{5, 0.5f}, std::pair{6, -0.25f}, std::pair{7, 0.75f},
          std::pair{200, -3.0f}, std::pair{300, 2.0f}})
      x[at(place)] = value;
    const Source source(x, 2, 256, DType::kBFloat16, false);
    Storage rows(2, 256, Form::kRows, true);
    CodingCounts counts;
    coding->rows(source.source, 0, 2, 127, rows.lines, &counts);
    // The first block has two int8 values other than 0, the last one none: they do not fall back.
    expect_counts(counts, {.elements = 6,
                           .zeroed = 2,
                           .blocks = 4,
                           .fallbacks = 2,
                           .largest = std::bit_cast<std::uint32_t>(127.0f)});
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
  const std::vector<double> bounds = anabatic::testing::int8_product_tolerances(
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
  const std::vector<float> x = int8_values(lines, depth, DType::kFloat32, 8);
  std::vector<float> w = int8_values(columns, depth, DType::kFloat32, 9);
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
  Storage right(columns, depth, Form::kTiles, false);
  portable::int8_coding().weights(of_w.source, 0, 1, &right.lines, nullptr);
  for (Int i = 0; i < 3 * int8_blocks(depth) * 16; ++i) right.lines.compensation[i] = 0;
  for (const GemmEngine* engine : int8_engines()) {
    if (!name_of(*engine).ends_with("_vnni")) continue;
    std::vector<float> y(at(lines * columns));
    const Gemm gemm{.rows = lines,
                    .columns = columns,
                    .depth = depth,
                    .a = of_x.left(),
                    .b = right.weights(),
                    .c = reinterpret_cast<std::byte*>(y.data()),
                    .c_stride = columns};
    samples::run_in_workspace(*engine, gemm, {gemm}, 1);
    EXPECT_GT(num_beyond(y, x, w, ref::code_lines(x, lines, depth, kNoFallback),
                         ref::code_tiles(w, columns, depth)),
              0);
  }
}

}  // namespace
}  // namespace anabatic::kernels::cpu
