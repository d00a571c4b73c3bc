// SPDX-License-Identifier: Apache-2.0
// Sizes beyond one block of the engines, on whole numbers, on which every order of summation gives
// the same bits; and on fractions, against the order that the engines promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/philox.h"
#include "base/rounding.h"
#include "device/thread_team.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tasks.h"
#include "support/rows_under_test.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;

struct Case {
  Int rows, columns, depth;
  DType a, b, c;
  bool a_by_columns, b_by_columns, has_bias, accumulate;
  Int sum_terms = 0;
};

// Whole numbers in [-2, 2], or fractions in [0.5, 1.5) that use all bits of the dtype.
enum class Numbers { kWhole, kFractions };

// A matrix of them, stored either way round.
struct Operand {
  std::vector<float> values;  // [rows, columns]
  std::vector<std::byte> bytes;
  Matrix matrix;

  Operand(Int rows, Int columns, DType dtype, bool by_columns, std::uint64_t stream,
          Numbers numbers = Numbers::kWhole) {
    const auto count = static_cast<std::size_t>(rows * columns);
    values.resize(count);
    bytes.resize(count * 4);
    matrix = {.data = bytes.data(),
              .dtype = dtype,
              .row_stride = by_columns ? 1 : columns,
              .column_stride = by_columns ? rows : 1};
    for (Int i = 0; i < rows; ++i)
      for (Int j = 0; j < columns; ++j) {
        const auto at = static_cast<std::uint64_t>(i * columns + j);
        const bool is_wide = dtype == DType::kFloat32;
        const float value =
            numbers == Numbers::kWhole
                ? static_cast<float>(random_below(1, stream, at, 5)) - 2.0f
                : 0.5f + static_cast<float>(random_below(1, stream, at, is_wide ? 1 << 23 : 128)) *
                             (is_wide ? 0x1p-23f : 0x1p-7f);
        values[at] = value;
        const Int to = i * matrix.row_stride + j * matrix.column_stride;
        if (dtype == DType::kFloat32) {
          reinterpret_cast<float*>(bytes.data())[to] = value;
        } else {
          reinterpret_cast<BFloat16*>(bytes.data())[to] = to_bfloat16(value);
        }
      }
  }
};

// The right operand as panels; what lies beyond its sides is zero. A vector of one alignment only:
// rows of panels are read aligned.
struct Packed {
  std::vector<std::byte> storage;
  Matrix matrix;

  Packed(const Operand& b, Int depth, Int columns) {
    const PanelShape shape = panel_shape(b.matrix.dtype, columns, depth, false);
    storage.resize(static_cast<std::size_t>(shape.num_elements() * 4 + 64));
    auto* data = reinterpret_cast<std::byte*>(
        round_up(reinterpret_cast<std::uintptr_t>(storage.data()), 64));
    for (Int k = 0; k < depth; ++k)
      for (Int j = 0; j < columns; ++j) {
        const float value = b.values[static_cast<std::size_t>(k * columns + j)];
        if (b.matrix.dtype == DType::kFloat32)
          reinterpret_cast<float*>(data)[shape.offset(j, k)] = value;
        else
          reinterpret_cast<BFloat16*>(data)[shape.offset(j, k)] = to_bfloat16(value);
      }
    matrix = {.data = data, .dtype = b.matrix.dtype, .is_packed = true};
  }
};

std::vector<float> expected(const Case& c, const Operand& a, const Operand& b,
                            const std::vector<float>& bias) {
  std::vector<float> sums(static_cast<std::size_t>(c.rows * c.columns), c.accumulate ? 3.0f : 0.0f);
  for (Int i = 0; i < c.rows; ++i)
    for (Int k = 0; k < c.depth; ++k)
      for (Int j = 0; j < c.columns; ++j)
        sums[static_cast<std::size_t>(i * c.columns + j)] +=
            a.values[static_cast<std::size_t>(i * c.depth + k)] *
            b.values[static_cast<std::size_t>(k * c.columns + j)];
  for (std::size_t at = 0; at < sums.size(); ++at) {
    if (c.has_bias) sums[at] += bias[at % static_cast<std::size_t>(c.columns)];
    if (c.c == DType::kBFloat16) sums[at] = to_float(to_bfloat16(sums[at]));
  }
  return sums;
}

std::vector<float> computed(const GemmEngine& engine, const Case& c, const Operand& a,
                            const Matrix& b, const std::vector<float>& bias, int num_threads,
                            std::span<const Operands> further = {}) {
  const auto count = static_cast<std::size_t>(c.rows * c.columns);
  std::vector<float> sums(count, 3.0f);
  std::vector<BFloat16> rounded(count);
  const bool is_f32 = c.c == DType::kFloat32;
  const Gemm gemm{.rows = c.rows,
                  .columns = c.columns,
                  .depth = c.depth,
                  .a = a.matrix,
                  .b = b,
                  .bias = c.has_bias ? bias.data() : nullptr,
                  .c = is_f32 ? reinterpret_cast<std::byte*>(sums.data())
                              : reinterpret_cast<std::byte*>(rounded.data()),
                  .c_dtype = c.c,
                  .c_stride = c.columns,
                  .accumulate = c.accumulate,
                  .further = further.data(),
                  .num_further = static_cast<Int>(further.size()),
                  .sum_terms = c.sum_terms};
  device::ThreadTeam team(num_threads);
  constexpr Int kGuard = 4096;
  const Int booked = engine.workspace_bytes(gemm) * num_threads;
  std::vector<std::byte> space(static_cast<std::size_t>(booked + kGuard + 64), std::byte{0xFF});
  auto* workspace =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(space.data()), 64));
  run_gemms(
      engine, gemm, 1, [&](Int) { return gemm; }, team, workspace);
  EXPECT_TRUE(std::all_of(workspace + booked, workspace + booked + kGuard,
                          [](std::byte at) { return at == std::byte{0xFF}; }))
      << "written beyond the workspace, depth " << c.depth;
  if (!is_f32) std::transform(rounded.begin(), rounded.end(), sums.begin(), to_float);
  return sums;
}

std::vector<const GemmEngine*> engines() {
  const spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  std::vector<const GemmEngine*> found;
  for (const GemmEngine* engine :
       {gemm_amx_bf16(), gemm_avx512_bf16(), gemm_avx512(), gemm_avx2(), gemm_portable()})
    if (usable(engine, device)) found.push_back(engine);
  return found;
}

TEST(GemmEngine, EqualsWholeNumberSumsBeyondOneBlock) {
  std::vector<Case> cases{
      {300, 70, 2501, kBf16, kBf16, kBf16, false, true, true, false},    // forward, partial sums
      {300, 70, 2500, kBf16, kBf16, kBf16, false, false, false, false},  // input-gradient
      {70, 300, 1101, kF32, kF32, kF32, false, true, true, false},
      {270, 530, 67, kF32, kF32, kF32, false, true, false, false},
      {270, 530, 67, kBf16, kBf16, kF32, false, true, false, false},
      {131, 530, 700, kBf16, kBf16, kF32, true, false, false, true},  // weight-gradient, +=
      {131, 95, 1301, kF32, kF32, kF32, true, false, false, true},
      {131, 95, 1301, kBf16, kF32, kF32, true, false, false, false},
      {40, 97, 1200, kF32, kBf16, kBf16, false, false, false, false}};
  // Whole blocks of rows of a weight-gradient, whose depths end anywhere within pairs and quads.
  for (const Int depth : {1, 2, 3, 5, 65, 201, 510})
    cases.push_back({256, 64, depth, kBf16, kBf16, kF32, true, false, false, false});
  int num_runs = 0;
  for (const Case& c : cases) {
    const Operand a(c.rows, c.depth, c.a, c.a_by_columns, 1);
    const Operand b(c.depth, c.columns, c.b, c.b_by_columns, 2);
    const Packed packed(b, c.depth, c.columns);
    std::vector<float> bias(static_cast<std::size_t>(c.columns));
    for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = static_cast<float>(j % 7) - 3.0f;
    const std::vector<float> want = expected(c, a, b, bias);
    for (const GemmEngine* engine : engines()) {
      if (!engine->accepts(c.a, c.b)) continue;
      for (const int num_threads : {1, 3}) {
        ++num_runs;
        for (const Matrix& right : {b.matrix, packed.matrix})
          EXPECT_EQ(computed(*engine, c, a, right, bias, num_threads), want)
              << (engine->isa != nullptr ? engine->isa : "portable") << ", " << num_threads
              << " threads, depth " << c.depth << (right.is_packed ? ", packed" : "");
      }
    }
  }
  EXPECT_GE(num_runs, 2 * static_cast<int>(cases.size()));
}

// Depths of one block and of several, in either order; the longest need not be the first.
TEST(GemmEngine, SumsFurtherProductsBeforeItRounds) {
  const std::vector<std::vector<Int>> depths{{7, 1100}, {1101, 3, 600}, {64, 64}};
  int num_runs = 0;
  for (const DType dtype : {kF32, kBf16})
    for (const bool is_packed : {false, true})
      for (const auto& lengths : depths) {
        const Case c{130, 70, 0, dtype, dtype, dtype, false, false, true, false};
        std::vector<Operand> a, b;
        std::vector<Packed> packed;
        std::vector<Operands> parts;
        std::vector<float> want(static_cast<std::size_t>(c.rows * c.columns), 0.0f);
        for (std::size_t p = 0; p < lengths.size(); ++p) {
          Case part = c;
          part.depth = lengths[p];
          part.c = kF32;
          part.has_bias = false;
          a.emplace_back(c.rows, part.depth, dtype, false, 2 * p + 1);
          b.emplace_back(part.depth, c.columns, dtype, false, 2 * p + 2);
          packed.emplace_back(b[p], part.depth, c.columns);
          const std::vector<float> sums = expected(part, a[p], b[p], {});
          for (std::size_t i = 0; i < want.size(); ++i) want[i] += sums[i];
          parts.push_back({.a = a[p].matrix,
                           .b = is_packed ? packed[p].matrix : b[p].matrix,
                           .depth = part.depth});
        }
        std::vector<float> bias(static_cast<std::size_t>(c.columns), 2.0f);
        for (float& value : want) {
          value += 2.0f;
          if (dtype == kBf16) value = to_float(to_bfloat16(value));
        }
        for (const GemmEngine* engine : engines()) {
          if (!engine->accepts(dtype, dtype)) continue;
          for (const int num_threads : {1, 3}) {
            ++num_runs;
            Case first = c;
            first.depth = lengths[0];
            EXPECT_EQ(computed(*engine, first, a[0], parts[0].b, bias, num_threads,
                               std::span(parts).subspan(1)),
                      want)
                << (engine->isa != nullptr ? engine->isa : "portable") << ", " << num_threads
                << " threads, first depth " << lengths[0] << (is_packed ? ", packed" : "");
          }
        }
      }
  EXPECT_GE(num_runs, 24);
}

// The sum of a block's terms as the engine forms it: from zero, in ascending order, each product
// added with one rounding where the instruction set has that; of a bf16 pair the odd one first. AMX
// sums the even and the odd ones of 32 terms apart.
float sum_of_block(const GemmEngine& engine, const Operand& a, const Operand& b, Int row,
                   Int column, Int begin, Int end, Int depth, Int columns) {
  const std::string_view isa = engine.isa != nullptr ? engine.isa : "portable";
  float sum = 0;
  const auto add_to = [&](float& to, Int k) {
    if (k >= end) return;
    const float left = a.values[static_cast<std::size_t>(row * depth + k)],
                right = b.values[static_cast<std::size_t>(k * columns + column)];
    to = isa == "portable" ? to + left * right : std::fma(left, right, to);
  };
  if (isa == "amx_bf16") {
    for (Int k = begin; k < end; k += 32) {
      float even = 0, odd = 0;
      for (Int pair = k; pair < k + 32; pair += 2) add_to(even, pair), add_to(odd, pair + 1);
      sum += even + odd;
    }
    return sum;
  }
  const auto add = [&](Int k) { add_to(sum, k); };
  for (Int k = begin; k < end; k += 2) {
    add(isa == "avx512_bf16" ? k + 1 : k);
    add(isa == "avx512_bf16" ? k : k + 1);
  }
  return sum;
}

// What products sum up to, block by block.
struct Promise {
  const GemmEngine& engine;
  const Case& c;
  std::span<const Operand> a, b;
  Int terms;  // of a block

  std::vector<float> sums(const std::vector<float>& bias) const {
    std::vector<float> sums;
    for (Int i = 0; i < c.rows; ++i)
      for (Int j = 0; j < c.columns; ++j) {
        float sum = c.accumulate ? 3.0f : 0.0f;
        for (std::size_t p = 0; p < a.size(); ++p) {
          const Int depth = static_cast<Int>(a[p].values.size()) / c.rows;
          for (Int k = 0; k < depth; k += terms)
            sum += sum_of_block(engine, a[p], b[p], i, j, k, std::min(depth, k + terms), depth,
                                c.columns);
        }
        if (c.has_bias) sum += bias[static_cast<std::size_t>(j)];
        sums.push_back(c.c == kBf16 ? to_float(to_bfloat16(sum)) : sum);
      }
    return sums;
  }
};

TEST(GemmEngine, AddsUpBlocksOfTheDepthInAscendingOrder) {
  std::vector<Case> cases{
      {19, 53, 2051, kF32, kF32, kF32, false, true, true, false},      // forward
      {19, 53, 2051, kBf16, kBf16, kBf16, false, true, true, false},   // rounded once
      {19, 53, 4096, kBf16, kBf16, kF32, false, false, false, false},  // input-gradient
      {37, 53, 1301, kF32, kF32, kF32, true, false, false, true},      // weight-gradient, +=
      {37, 53, 1301, kBf16, kBf16, kF32, true, false, false, true},
      {19, 53, 1100, kBf16, kF32, kF32, false, false, false, true, 64},  // shorter blocks
      {19, 53, 1100, kBf16, kBf16, kF32, false, false, false, true, 128},
      {2, 5, 49152, kF32, kF32, kF32, false, true, false, false},
      {2, 5, 49152, kBf16, kBf16, kBf16, false, true, false, false}};
  int num_runs = 0;
  for (const Case& c : cases) {
    const Operand a(c.rows, c.depth, c.a, c.a_by_columns, 1, Numbers::kFractions),
        b(c.depth, c.columns, c.b, c.b_by_columns, 2, Numbers::kFractions),
        more_a(c.rows, 700, c.a, c.a_by_columns, 3, Numbers::kFractions),
        more_b(700, c.columns, c.b, c.b_by_columns, 4, Numbers::kFractions);
    const Operand lefts[] = {a, more_a}, rights[] = {b, more_b};
    const Packed packed(b, c.depth, c.columns), more_packed(more_b, 700, c.columns);
    const std::vector<float> bias(static_cast<std::size_t>(c.columns), 1.0f / 3);
    for (const GemmEngine* engine : engines()) {
      if (!engine->accepts(c.a, c.b)) continue;
      const Int terms = engine->sum_terms({.a = a.matrix, .b = b.matrix, .sum_terms = c.sum_terms});
      EXPECT_LE(terms, c.sum_terms > 0 ? c.sum_terms : kMostSumTerms);
      EXPECT_GE(terms, c.sum_terms > 0 ? c.sum_terms : 256);
      for (const bool is_packed : {false, true})
        for (const std::size_t count : {1, 2}) {
          ++num_runs;
          const Promise promise{*engine, c, {lefts, count}, {rights, count}, terms};
          const Operands further{.a = more_a.matrix,
                                 .b = is_packed ? more_packed.matrix : more_b.matrix,
                                 .depth = 700};
          EXPECT_EQ(computed(*engine, c, a, is_packed ? packed.matrix : b.matrix, bias, 2,
                             {&further, count - 1}),
                    promise.sums(bias))
              << (engine->isa != nullptr ? engine->isa : "portable") << ", depth " << c.depth
              << ", " << count << " products" << (is_packed ? ", packed" : "");
        }
    }
  }
  EXPECT_GE(num_runs, 4 * static_cast<int>(cases.size()));
}

}  // namespace
}  // namespace anabatic::kernels::cpu
