// SPDX-License-Identifier: Apache-2.0
// Rows that take f16: their results are those of the f32 row on the same values, rounded once.
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ops/run_all.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16, kBf16 = DType::kBFloat16;

OpCall cast_call(Values x, DType to) {
  const TensorType type = with_dtype(x.type, to);
  return {"cast",
          {{"dtype", std::string(to_string(to))}, {"rounding", std::string("even")}},
          {std::move(x)},
          {type}};
}

// Threads of a team flush subnormals of f32, and no row may flush those of f16.
TEST(CastOfHalf, KeepsEveryValue) {
  Values halves{.type = tensor_type(kF16, {1 << 16})};
  for (std::uint32_t bits = 0; bits < 1 << 16; ++bits)
    halves.data.push_back(half_to_float(static_cast<std::uint16_t>(bits)));
  Values floats = halves;
  floats.type.dtype = kF32;
  for (const auto& [x, to] : {std::pair{halves, kF32}, {floats, kF16}})
    for (const auto& got : run_all(cast_call(x, to)))
      for (std::size_t i = 0; i < halves.data.size(); ++i)
        if (std::isnan(halves.data[i]))
          EXPECT_TRUE(std::isnan(got[0].data[i])) << i;
        else
          EXPECT_EQ(got[0].data[i], halves.data[i]) << i;
}

// Next to the middle of each two neighbours, subnormals and the largest one included.
TEST(CastOfHalf, RoundsToNearestEven) {
  constexpr std::uint16_t kInfinity = 0x7C00;
  constexpr float kBeyond = 65536;
  Values floats{.type = tensor_type(kF32, {6 * kInfinity})};
  std::vector<float> wants;
  for (std::uint16_t low = 0; low < kInfinity; ++low) {
    const float below = half_to_float(low),
                above = low + 1 == kInfinity ? kBeyond
                                             : half_to_float(static_cast<std::uint16_t>(low + 1)),
                end = low + 1 == kInfinity ? std::numeric_limits<float>::infinity() : above,
                middle = (below + above) / 2;
    for (const float sign : {1.0f, -1.0f}) {
      for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kBeyond)})
        floats.data.push_back(sign * x);
      for (const float want : {below, low % 2 == 0 ? below : end, end})
        wants.push_back(sign * want);
    }
  }
  for (const auto& got : run_all(cast_call(floats, kF16)))
    for (std::size_t i = 0; i < wants.size(); ++i)
      EXPECT_EQ(got[0].data[i], wants[i]) << floats.data[i];
}

// The call with f32 in place of operands of 16 bits.
OpCall in_f32(OpCall call) {
  const auto widen = [](TensorType& type) {
    if (type.dtype == kF16 || type.dtype == kBf16) type.dtype = kF32;
  };
  for (Values& input : call.inputs) widen(input.type);
  for (TensorType& output : call.outputs) widen(output);
  return call;
}

// Values that the type holds.
Values drawn(const TensorType& type, std::uint64_t stream) {
  return HostTensor(random_values(type, Regime::kBounded, 7, stream)).values();
}

// Each row for f16 against the one that computes the same in f32, `suffix` apart in name.
int expect_rounded(const OpCall& call, std::string_view suffix) {
  const ir::OpSchema& schema = *ops::find_op(call.op);
  const OpCall wide = in_f32(call);
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates(call.op)) {
    if (is_reference(*row) || !is_under_test(row->name) || !supports(*row, call)) continue;
    const kernels::Kernel* plain =
        kernels::find_kernel(row->name.substr(0, row->name.size() - suffix.size()));
    if (!row->name.ends_with(suffix) || plain == nullptr || !supports(*plain, wide)) continue;
    ++num_rows;
    const RunResult want = run_kernel(*plain, schema, wide);
    for (const int num_threads : {1, 3}) {
      const RunResult got = run_kernel(*row, schema, call, {.num_threads = num_threads});
      EXPECT_EQ(got.violation, "") << row->name;
      for (std::size_t o = 0; o < call.outputs.size(); ++o) {
        Values rounded = want.outputs[o].values();
        rounded.type = call.outputs[o];
        EXPECT_EQ(compare_bits(got.outputs[o], HostTensor(rounded)).report, "")
            << row->name << ", output " << o;
      }
    }
  }
  return num_rows;
}

TEST(WidenedRows, HaveTheBitsOfTheRowInF32RoundedOnce) {
  const TensorType x = tensor_type(kF16, {70, 23}), gate = tensor_type(kF32, {70, 1});
  EXPECT_GT(expect_rounded(
                {"gate_rows_gradient", {}, {drawn(x, 0), drawn(gate, 1), drawn(x, 2)}, {x, gate}},
                "_widened"),
            0);
  const TensorType out = tensor_type(kF16, {40, 12});
  const Values lse = drawn(tensor_type(kF32, {40, 2}), 9);
  Values begin{.type = tensor_type(DType::kInt32, {40}), .data = std::vector<double>(40, 0)},
      end = begin;
  for (std::size_t i = 0; i < 40; ++i) end.data[i] = static_cast<double>(i + 1);
  EXPECT_GT(expect_rounded({"attention",
                            {{"num_heads", std::int64_t{2}},
                             {"num_kv_heads", std::int64_t{2}},
                             {"scale", 0.5},
                             {"window", std::int64_t{0}}},
                            {drawn(out, 4), drawn(out, 5), drawn(out, 6), begin, end},
                            {out, lse.type}},
                           "_widened"),
            0);
}

TEST(ProductsOfHalf, HaveTheBitsOfThoseInF32RoundedOnce) {
  for (const bool is_packed : {false, true}) {
    const std::int64_t rows = 37, in = 530, out = 67;
    const TensorType x = tensor_type(kF16, {rows, in}), y = tensor_type(kF16, {rows, out});
    TensorType weight = tensor_type(kF16, {out, in}), turned = weight;
    if (is_packed) {
      weight.layout = panels_layout(false);
      turned.layout = panels_layout(true);
    }
    EXPECT_GT(expect_rounded({"linear", {}, {drawn(x, 0), drawn(weight, 1)}, {y}}, ""), 0);
    EXPECT_GT(expect_rounded({"linear_input_gradient",
                              {{"output_dtype", std::string("f16")}},
                              {drawn(y, 2), drawn(turned, 1)},
                              {x}},
                             ""),
              0);
  }
}

// A result beyond the largest f16 is infinite, which a scaled loss counts on.
TEST(ProductsOfHalf, OverflowToInfinity) {
  const std::int64_t rows = 19, depth = 100;
  const auto constant = [](std::vector<std::int64_t> shape, double value) {
    Values values{.type = tensor_type(kF16, std::move(shape))};
    values.data.assign(static_cast<std::size_t>(values.type.num_elements()), value);
    return values;
  };
  const OpCall call{"linear",
                    {},
                    {constant({rows, depth}, 64), constant({21, depth}, -16)},
                    {tensor_type(kF16, {rows, 21})}};
  for (const auto& got : run_all(call))
    for (const double value : got[0].data)
      EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace anabatic::testing
