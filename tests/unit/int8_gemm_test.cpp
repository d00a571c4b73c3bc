// SPDX-License-Identifier: Apache-2.0
// Engines of int8 products in every form of a Gemm, against the definition, bit by bit: groups of
// rows, gathered operands, bias, several products into one sum, panels, columns apart, squares.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "device/denormals.h"
#include "int8_samples.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;
using ref::CodedLines;
using samples::Aligned;
using samples::at;
using samples::Form;
using samples::int8_engines;
using samples::int8_values;
using samples::name_of;
using samples::product_of;
using samples::run_in_workspace;
using samples::same;
using samples::Source;
using samples::Storage;

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;
// Without rows, of one, and of a number that is no multiple of anything.
const std::vector<Int> kOffsets{0, 0, 1, 38, 38, 171};
constexpr int kThreads[] = {1, 2, 3};

std::vector<float> lines_of(const std::vector<float>& x, Int depth, Int begin, Int end) {
  return {x.begin() + begin * depth, x.begin() + end * depth};
}

// Lines of x, in the order of `index`: `top_k` times as many.
struct Gathered {
  static constexpr Int kTopK = 2;
  std::vector<std::int32_t> index;
  std::vector<float> lines;

  Gathered(const std::vector<float>& x, Int num_lines, Int depth) {
    index.resize(at(num_lines * kTopK));
    std::iota(index.begin(), index.end(), 0);
    for (std::size_t i = index.size(); i-- > 1;)
      std::swap(index[i], index[random_below(3, 5, i, i + 1)]);
    for (const std::int32_t slot : index) {
      const Int line = slot / kTopK;
      lines.insert(lines.end(), x.begin() + line * depth, x.begin() + (line + 1) * depth);
    }
  }
};

struct Weights {
  CodedLines coded;
  Storage storage;

  Weights(Int columns, Int depth, std::uint64_t stream)
      : coded(ref::code_tiles(int8_values(columns, depth, kBf16, stream), columns, depth)),
        storage(columns, depth, Form::kTiles, false) {
    const Source source(int8_values(columns, depth, kBf16, stream), columns, depth, kBf16, false);
    portable::int8_coding().weights(source.source, 0, ceil_div(columns, kInt8Block), &storage.lines,
                                    nullptr);
  }
};

// What a call wrote, as floats.
struct Result {
  Aligned<float> memory;
  DType dtype;
  Result(Int count, DType type) : dtype(type) {
    memory.resize(count);
    for (Int i = 0; i < count; ++i) memory.data[i] = 3.0f;
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(memory.data); }
  float operator[](Int i) const {
    return dtype == kF32 ? memory.data[i]
                         : to_float(reinterpret_cast<const BFloat16*>(memory.data)[i]);
  }
};

float rounded(float x, DType dtype) { return dtype == kF32 ? x : to_float(to_bfloat16(x)); }

TEST(Int8Gemm, OfGatheredRowsOfGroupsWithBias) {
  const device::DenormalsAreZero mode;
  const Int columns = 83, depth = 300, rows = kOffsets.back() / 2 * 2;
  std::vector<Int> offsets = kOffsets;
  offsets.back() = rows;
  const Int groups = std::ssize(offsets) - 1;
  const std::vector<float> x = int8_values(rows / Gathered::kTopK, depth, kBf16, 1);
  const Source source(x, rows / Gathered::kTopK, depth, kBf16, false);
  const Gathered gathered(x, rows / Gathered::kTopK, depth);
  std::vector<std::unique_ptr<Weights>> weights;
  for (Int g = 0; g < groups; ++g)
    weights.push_back(std::make_unique<Weights>(columns, depth, 10 + static_cast<unsigned>(g)));
  std::vector<float> bias(at(columns));
  for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = static_cast<float>(j % 7) - 3.0f;
  for (const DType dtype : {kF32, kBf16})
    for (const int fallback : {16, kNoFallback})
      for (const bool has_bias : {false, true})
        for (const GemmEngine* engine : int8_engines())
          for (const int threads : kThreads) {
            const Result c(rows * columns, dtype);
            Gemm whole{.rows = rows,
                       .columns = columns,
                       .depth = depth,
                       .a = source.left(fallback),
                       .b = weights[0]->storage.weights(),
                       .c_dtype = dtype,
                       .c_stride = columns};
            std::vector<Gemm> gemms;
            for (Int g = 0; g < groups; ++g) {
              Gemm gemm = whole;
              gemm.rows = offsets[at(g + 1)] - offsets[at(g)];
              gemm.a.index = row_index(gathered.index.data() + offsets[at(g)], Gathered::kTopK);
              gemm.b = weights[at(g)]->storage.weights();
              gemm.bias = has_bias ? bias.data() : nullptr;
              gemm.c = c.data() + offsets[at(g)] * columns * size_bytes(dtype);
              gemms.push_back(gemm);
            }
            run_in_workspace(*engine, whole, gemms, threads);
            for (Int g = 0; g < groups; ++g) {
              const Int begin = offsets[at(g)], count = offsets[at(g + 1)] - begin;
              const CodedLines left = ref::code_lines(
                  lines_of(gathered.lines, depth, begin, begin + count), count, depth, fallback);
              const std::vector<float> want = product_of(left, weights[at(g)]->coded);
              for (Int i = 0; i < count * columns; ++i) {
                const float sum = want[at(i)] + (has_bias ? bias[at(i % columns)] : 0.0f);
                ASSERT_TRUE(same(c[begin * columns + i], rounded(sum, dtype)))
                    << name_of(*engine) << " group " << g << " element " << i;
              }
            }
          }
}

// The chain goes on from product to product, whichever is the deepest.
TEST(Int8Gemm, SumsFurtherProductsBeforeItRounds) {
  const device::DenormalsAreZero mode;
  const Int rows = 67, columns = 100;
  for (const std::vector<Int>& depths :
       {std::vector<Int>{300, 36}, std::vector<Int>{64, 2500, 128}}) {
    std::vector<std::unique_ptr<Weights>> weights;
    std::vector<std::unique_ptr<Source>> sources;
    std::vector<float> want(at(rows * columns));
    std::vector<Operands> operands;
    for (std::size_t p = 0; p < depths.size(); ++p) {
      const Int depth = depths[p];
      const std::vector<float> x = int8_values(rows, depth, kBf16, 20 + p);
      sources.push_back(std::make_unique<Source>(x, rows, depth, kBf16, false));
      weights.push_back(std::make_unique<Weights>(columns, depth, 30 + p));
      ref::add_int8_product(ref::code_lines(x, rows, depth, kNoFallback), weights[p]->coded, want);
      operands.push_back(
          {.a = sources[p]->left(), .b = weights[p]->storage.weights(), .depth = depth});
    }
    for (const DType dtype : {kF32, kBf16})
      for (const GemmEngine* engine : int8_engines())
        for (const int threads : kThreads) {
          const Result c(rows * columns, dtype);
          const Gemm gemm{.rows = rows,
                          .columns = columns,
                          .depth = operands[0].depth,
                          .a = operands[0].a,
                          .b = operands[0].b,
                          .c = c.data(),
                          .c_dtype = dtype,
                          .c_stride = columns,
                          .further = operands.data() + 1,
                          .num_further = std::ssize(operands) - 1};
          run_in_workspace(*engine, gemm, {gemm}, threads);
          for (Int i = 0; i < rows * columns; ++i)
            ASSERT_TRUE(same(c[i], rounded(want[at(i)], dtype))) << name_of(*engine) << " " << i;
        }
  }
}

// A weight gradient of groups of tokens. `panels`: C in panels of 16 columns; `step`: from column
// to column of C.
struct GradientForm {
  bool panels = false, adds = false, streams = false, squares = false, gathers_right = false;
  bool left_falls_back = false;
  Int step = 1;
  DType c = kF32;
};

// Weight gradients [lines, columns] of each group, in sequence; and the sums of their squares.
struct Gradients {
  std::vector<float> values;
  double squares = 0;
};

Gradients gradients_of(const GemmEngine& engine, const GradientForm& form, Int lines, Int columns,
                       const Source& left, const Source& right, const Gathered& gathered,
                       int threads) {
  constexpr int kFallback = 16;
  const Int groups = std::ssize(kOffsets) - 1;
  const Int padded = round_up(columns, kInt8Panel);
  // Rows begin at lines of the cache where C streams.
  const Int stride = form.panels ? kInt8Panel : padded * form.step;
  const Int matrix = lines * padded * form.step;
  const Result c(groups * matrix, form.c);
  Gemm whole{.rows = lines,
             .columns = columns,
             .depth = kOffsets.back(),
             .a = left.left(form.left_falls_back ? kFallback : kNoFallback),
             .b = right.right(form.left_falls_back ? kNoFallback : kFallback),
             .c_dtype = form.c,
             .c_stride = stride,
             .c_panel_stride = form.panels ? lines * kInt8Panel : kInt8Panel * form.step,
             .c_column_step = form.step,
             .c_in_panels = form.panels,
             .accumulate = form.adds,
             .streams = form.streams};
  const Blocking size = engine.blocking(whole);
  const Int tiles = ceil_div(lines, size.row_step) * ceil_div(columns, size.column_step);
  std::vector<double> squares(at(groups * tiles));
  std::vector<Gemm> gemms;
  for (Int g = 0; g < groups; ++g) {
    Gemm gemm = whole;
    const Int begin = kOffsets[at(g)];
    gemm.depth = kOffsets[at(g + 1)] - begin;
    (form.gathers_right ? gemm.b : gemm.a).index =
        row_index(gathered.index.data() + begin, Gathered::kTopK);
    if (form.gathers_right)
      gemm.a.data += begin * lines * size_bytes(gemm.a.dtype);
    else
      gemm.b.data += begin * columns * size_bytes(gemm.b.dtype);
    gemm.c = c.data() + g * matrix * size_bytes(form.c);
    if (form.squares) gemm.squares = squares.data() + g * tiles;
    gemms.push_back(gemm);
  }
  run_in_workspace(engine, whole, gemms, threads);
  Gradients result;
  for (Int g = 0; g < groups; ++g)
    for (Int i = 0; i < lines; ++i)
      for (Int j = 0; j < columns; ++j)
        result.values.push_back(
            c[g * matrix + i * stride +
              (form.panels ? j / kInt8Panel * lines * kInt8Panel + j % kInt8Panel
                           : j * form.step)]);
  for (const double of_tile : squares) result.squares += of_tile;
  return result;
}

TEST(Int8Gemm, OfTokensOfGroupsInEveryForm) {
  const device::DenormalsAreZero mode;
  const Int tokens = kOffsets.back() + 1, lines = 53, columns = 101;
  const std::vector<float> few_left = int8_values(lines, tokens / 2, kBf16, 40),
                           few_right = int8_values(columns, tokens / 2, kBf16, 41),
                           left = int8_values(lines, tokens, kBf16, 42),
                           right = int8_values(columns, tokens, kBf16, 43);
  // Gathered along the depth: lines of tokens.
  const auto by_token = [&](const std::vector<float>& x, Int num_lines, Int depth) {
    std::vector<float> turned(x.size());
    for (Int i = 0; i < num_lines; ++i)
      for (Int t = 0; t < depth; ++t) turned[at(t * num_lines + i)] = x[at(i * depth + t)];
    return turned;
  };
  const Source narrow_left(few_left, lines, tokens / 2, kBf16, true),
      narrow_right(few_right, columns, tokens / 2, kBf16, true),
      whole_left(left, lines, tokens, kBf16, true),
      whole_right(right, columns, tokens, kBf16, true);
  const Gathered gathered_left(by_token(few_left, lines, tokens / 2), tokens / 2, lines),
      gathered_right(by_token(few_right, columns, tokens / 2), tokens / 2, columns);
  const auto coded = [&](const std::vector<float>& tokens_of, Int width, Int g, int fallback) {
    const Int begin = kOffsets[at(g)], depth = kOffsets[at(g + 1)] - begin;
    const std::vector<float> part = lines_of(tokens_of, width, begin, begin + depth);
    return ref::code_lines(by_token(part, depth, width), width, depth, fallback);
  };
  const GradientForm forms[] = {
      {},
      {.adds = true},
      {.streams = true},
      {.squares = true},
      {.streams = true, .squares = true},
      {.adds = true, .squares = true, .gathers_right = true},
      {.panels = true, .left_falls_back = true},
      {.panels = true, .adds = true, .squares = true, .left_falls_back = true},
      {.panels = true, .streams = true, .gathers_right = true, .left_falls_back = true},
      {.step = 3},
      {.left_falls_back = true, .c = kBf16},
      {.gathers_right = true, .step = 2, .c = kBf16}};
  for (const GradientForm& form : forms) {
    std::vector<float> want;
    for (Int g = 0; g + 1 < std::ssize(kOffsets); ++g) {
      const CodedLines a = form.gathers_right ? coded(by_token(left, lines, tokens), lines, g,
                                                      form.left_falls_back ? 16 : kNoFallback)
                                              : coded(gathered_left.lines, lines, g,
                                                      form.left_falls_back ? 16 : kNoFallback);
      const CodedLines b = form.gathers_right ? coded(gathered_right.lines, columns, g,
                                                      form.left_falls_back ? kNoFallback : 16)
                                              : coded(by_token(right, columns, tokens), columns, g,
                                                      form.left_falls_back ? kNoFallback : 16);
      for (const float y : product_of(a, b, form.adds ? 3.0f : 0.0f))
        want.push_back(rounded(y, form.c));
    }
    std::optional<double> squares;  // of the first engine and number of threads
    for (const GemmEngine* engine : int8_engines())
      for (const int threads : kThreads) {
        const Gradients got = gradients_of(
            *engine, form, lines, columns, form.gathers_right ? whole_left : narrow_left,
            form.gathers_right ? narrow_right : whole_right,
            form.gathers_right ? gathered_right : gathered_left, threads);
        ASSERT_EQ(got.values.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_TRUE(same(got.values[i], want[i]))
              << name_of(*engine) << " form " << &form - forms << " element " << i << ": "
              << got.values[i] << ", expected " << want[i];
        if (!form.squares) continue;
        if (!squares) squares = got.squares;
        EXPECT_EQ(got.squares, *squares) << name_of(*engine);
        double sum = 0;
        for (const float y : got.values) sum += double{y} * y;
        EXPECT_EQ(static_cast<float>(got.squares), static_cast<float>(sum));
      }
  }
}

// Lines of which a share of the blocks is ruled by one element, drawn block by block.
std::vector<float> scattered(Int lines, Int depth, double share, std::uint64_t stream) {
  std::vector<float> x(at(lines * depth));
  for (Int i = 0; i < lines * depth; ++i)
    x[at(i)] =
        to_float(to_bfloat16(random_uniform(9, stream, static_cast<std::uint64_t>(i)) - 0.5f));
  for (Int i = 0; i < lines; ++i)
    for (Int k = 0; k < depth; k += kInt8Block)
      if (random_uniform(9, stream + 1, static_cast<std::uint64_t>(i * depth + k)) < share)
        x[at(i * depth + k + (i + k / kInt8Block) % std::min(kInt8Block, depth - k))] = 300.0f;
  return x;
}

// Few lines of a block fall back, many, or all: of either operand, in rows or in panels. Rows are
// more than one group of those whose second values are summed together, and no multiple of it.
TEST(Int8Gemm, OfBlocksThatFallBackHereAndThere) {
  const device::DenormalsAreZero mode;
  constexpr int kFallback = 64;
  struct Sizes {
    Int rows, columns, depth;
  };
  enum class Second { kOfRows, kOfLeftPanels, kOfRightPanels, kOfRightPanelsByRows };
  for (const Sizes& n : {Sizes{1, 5, 250}, Sizes{93, 70, 361}, Sizes{180, 49, 2405}})
    for (const double share : {0.004, 0.1, 0.3, 1.0})
      for (const Second second : {Second::kOfRows, Second::kOfLeftPanels, Second::kOfRightPanels,
                                  Second::kOfRightPanelsByRows}) {
        const bool of_left = second == Second::kOfRows || second == Second::kOfLeftPanels;
        const bool in_rows = second == Second::kOfRows || second == Second::kOfRightPanelsByRows;
        const std::vector<float> x = scattered(n.rows, n.depth, of_left ? share : 0, 60),
                                 w = scattered(n.columns, n.depth, of_left ? 0 : share, 62);
        const Source left(x, n.rows, n.depth, kBf16, !in_rows),
            right(w, n.columns, n.depth, kBf16, true);
        const CodedLines a = ref::code_lines(x, n.rows, n.depth, of_left ? kFallback : kNoFallback),
                         b = ref::code_lines(w, n.columns, n.depth,
                                             of_left ? kNoFallback : kFallback);
        const std::vector<bool>& falls_back = (of_left ? a : b).falls_back;
        const auto count = std::count(falls_back.begin(), falls_back.end(), true);
        if (n.rows > 1) {
          EXPECT_EQ(count == std::ssize(falls_back), share == 1.0);
          EXPECT_GE(count, share * static_cast<double>(falls_back.size()) / 2 - 4);
        }
        const std::vector<float> want = product_of(a, b);
        for (const GemmEngine* engine : int8_engines())
          for (const int threads : {1, 3}) {
            const Result c(n.rows * n.columns, kF32);
            const Gemm gemm{.rows = n.rows,
                            .columns = n.columns,
                            .depth = n.depth,
                            .a = left.left(of_left ? kFallback : kNoFallback),
                            .b = right.right(of_left ? kNoFallback : kFallback),
                            .c = c.data(),
                            .c_stride = n.columns};
            run_in_workspace(*engine, gemm, {gemm}, threads);
            for (Int i = 0; i < n.rows * n.columns; ++i)
              ASSERT_TRUE(same(c[i], want[at(i)]))
                  << name_of(*engine) << " " << n.rows << " rows, share " << share << ", form "
                  << static_cast<int>(second) << ", element " << i;
          }
      }
}

// Two weights of one x: its int8 values take room once.
TEST(Int8Gemm, QuantisesAnOperandOfSeveralGemmsOnce) {
  const Int rows = 40, columns = 64, depth = 256;
  const Source x(int8_values(rows, depth, kBf16, 50), rows, depth, kBf16, false);
  const Weights first(columns, depth, 51), second(columns, depth, 52);
  Gemm gemm{.rows = rows, .columns = columns, .depth = depth, .a = x.left()};
  Aligned<std::byte> space;
  space.resize(2 * int8_bytes(gemm, 2));
  Int8OperandCoding coding(space.data, 2, 1);
  gemm.b = first.storage.weights();
  coding.add(gemm, 0);
  gemm.b = second.storage.weights();
  coding.add(gemm, 1);
  EXPECT_EQ(coding.of(0)->a, coding.of(1)->a);
  EXPECT_EQ(coding.of(0)->b, nullptr);
  gemm.rows = rows - 1;
  Int8OperandCoding apart(space.data, 2, 1);
  apart.add(gemm, 0);
  gemm.rows = rows;
  apart.add(gemm, 1);
  EXPECT_NE(apart.of(0)->a, apart.of(1)->a);
}

}  // namespace
}  // namespace anabatic::kernels::cpu
