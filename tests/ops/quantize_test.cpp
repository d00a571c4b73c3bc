// SPDX-License-Identifier: Apache-2.0
// The error of saving a value as int8: of the value, and of the gradients that read it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rounding.h"
#include "ops/kernel_runner.h"
#include "ops/table.h"
#include "spec/decisions.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr std::int64_t kBlock = spec::kCompressionBlock;

std::vector<const kernels::Kernel*> rows_of(std::string_view op, const OpCall& call) {
  std::vector<const kernels::Kernel*> rows;
  for (const kernels::Kernel* kernel : kernels::candidates(op))
    if (is_under_test(kernel->name) && supports(*kernel, call)) rows.push_back(kernel);
  return rows;
}

TensorType in_int8(const TensorType& type, std::int64_t block = kBlock) {
  return quantized(type, {.scale = DType::kBFloat16, .columns = block});
}

// x quantised and back, by every pair of rows of the two ops.
std::vector<HostTensor> round_trips(const Values& x) {
  const OpCall there{"quantize", {{"block", kBlock}}, {x}, {in_int8(x.type)}};
  std::vector<HostTensor> trips;
  for (const kernels::Kernel* kernel : rows_of("quantize", there)) {
    RunResult form = run_kernel(*kernel, *ops::find_op("quantize"), there);
    EXPECT_EQ(form.violation, "") << kernel->name;
    const OpCall back{"dequantize",
                      {{"dtype", std::string(to_string(x.type.dtype))}},
                      {form.outputs[0].values()},
                      {x.type}};
    for (const kernels::Kernel* other : rows_of("dequantize", back)) {
      RunResult result = run_kernel(*other, *ops::find_op("dequantize"), back);
      EXPECT_EQ(result.violation, "") << other->name;
      trips.push_back(std::move(result.outputs[0]));
    }
  }
  EXPECT_FALSE(trips.empty());
  return trips;
}

// The bound on every element, from the largest of its block.
std::vector<double> error_bounds(const Values& x) {
  const std::int64_t width = x.type.dim(1);
  std::vector<double> largest(x.data.size(), 0), bounds;
  const auto block_of = [&](std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    return static_cast<std::size_t>(at / width * width + at % width / kBlock * kBlock);
  };
  for (std::size_t i = 0; i < x.data.size(); ++i)
    largest[block_of(i)] = std::max(largest[block_of(i)], std::abs(x.data[i]));
  for (std::size_t i = 0; i < x.data.size(); ++i)
    bounds.push_back(quantization_tolerance(largest[block_of(i)], x.type.dtype));
  return bounds;
}

Values normal(DType dtype, std::int64_t rows, std::int64_t width, std::uint64_t seed) {
  return random_values(tensor_type(dtype, {rows, width}), Regime::kBounded, seed, 0);
}

// Elements far below the largest of their block come back as zero, so no count of zeroes here.
TEST(Quantize, ComesBackWithinTheBoundOfItsBlock) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const std::int64_t width : {1, 63, 65, 127, 128, 129, 200, 384})
      for (const double size : {1e-33, 1e-20, 1.0, 1e20, 1e37}) {
        Values x = normal(dtype, 7, width, 3);
        for (std::size_t i = 0; i < x.data.size(); ++i)  // of several sizes in a row
          x.data[i] *= size * (i % 3 == 0 ? 1 : 0.01);
        x = HostTensor(x).values();
        const std::vector<double> bounds = error_bounds(x);
        for (const HostTensor& trip : round_trips(x))
          for (std::size_t i = 0; i < bounds.size(); ++i) {
            const double error = std::abs(trip.get(static_cast<std::int64_t>(i)) - x.data[i]);
            ASSERT_TRUE(error <= bounds[i])
                << i << " of " << width << " columns, size " << size << ": off by " << error;
          }
      }
}

TEST(Quantize, KeepsWhatIsNotFiniteNotFiniteAndToItsBlock) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity()})
      for (const std::size_t at : {0u, 63u, 64u, 90u, 130u, 149u}) {
        Values x = normal(dtype, 1, 150, 4);
        const std::vector<double> bounds = error_bounds(x);
        Values spoilt = x;
        spoilt.data[at] = bad;
        for (const HostTensor& trip : round_trips(spoilt))
          for (std::size_t i = 0; i < x.data.size(); ++i) {
            const double got = trip.get(static_cast<std::int64_t>(i));
            if (i / kBlock == at / kBlock) {
              EXPECT_TRUE(std::isnan(got)) << i << " next to " << at;
            } else {
              EXPECT_LE(std::abs(got - x.data[i]), bounds[i]) << i;
            }
          }
      }
}

// Gradients in double from what was saved and from what came back.
void expect_within_bounds(OpCall call, const std::vector<std::size_t>& saved) {
  const std::vector<Values> want = run_in_double(call);
  std::vector<std::vector<double>> errors(call.inputs.size());
  std::vector<Values> came_back;
  for (const std::size_t i : saved) {
    errors[i] = error_bounds(call.inputs[i]);
    came_back.push_back(round_trips(call.inputs[i]).front().values());
  }
  const std::vector<std::vector<double>> bounds = gradient_tolerances(call, errors);
  for (std::size_t i = 0; i < saved.size(); ++i) call.inputs[saved[i]] = came_back[i];
  const std::vector<Values> got = run_in_double(call);
  for (std::size_t o = 0; o < want.size(); ++o) {
    EXPECT_EQ(compare(got[o], want[o], bounds[o], {"", true}).report, "") << call.op << " " << o;
    EXPECT_NE(got[o].data, want[o].data) << call.op << " " << o;
  }
}

TEST(Quantize, GradientsStayWithinTheirBounds) {
  constexpr std::int64_t kRows = 40, kWidth = 150, kOutputs = 9;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      const Values x = normal(dtype, kRows, kWidth, seed),
                   u = normal(dtype, kRows, kWidth, seed + 9),
                   dy = normal(dtype, kRows, kWidth, seed + 19),
                   small = normal(dtype, kRows, kOutputs, seed + 29);
      Values weight{tensor_type(DType::kFloat32, {kWidth}), {}};
      weight.data.assign(dy.data.begin(), dy.data.begin() + kWidth);
      const TensorType row = tensor_type(DType::kFloat32, {kWidth});
      expect_within_bounds({"linear_weight_gradient",
                            {},
                            {x, small},
                            {tensor_type(DType::kFloat32, {kOutputs, kWidth})}},
                           {0});
      expect_within_bounds(
          {"activation_gradient", {{"activation", "swiglu"}}, {x, u, dy}, {x.type, x.type}},
          {0, 1});
      expect_within_bounds(
          {"rms_norm_weight_gradient", {{"epsilon", 1e-6}, {"width", kWidth}}, {x, dy}, {row}},
          {0});
      expect_within_bounds(
          {"rms_norm_input_gradient", {{"epsilon", 1e-6}}, {x, weight, dy}, {x.type}}, {0});
    }
}

// The outputs of one row, which must take the call.
std::vector<HostTensor> outputs_of(const std::string& row, const OpCall& call) {
  const kernels::Kernel* kernel = kernels::find_kernel(row);
  EXPECT_NE(kernel, nullptr) << row;
  RunResult result = run_kernel(*kernel, *ops::find_op(call.op), call);
  EXPECT_EQ(result.violation, "") << row;
  return std::move(result.outputs);
}

std::vector<std::pair<DType, std::int64_t>> dtypes_and_widths() {
  std::vector<std::pair<DType, std::int64_t>> result;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const std::int64_t width : {5, 64, 200, 600}) result.emplace_back(dtype, width);
  return result;
}

TEST(Quantize, BehindAProductGivesTheBitsOfTheOpsApart) {
  constexpr std::int64_t kRows = 130, kDepth = 40;
  int num_rows = 0;
  for (const std::int64_t block : {std::int64_t{64}, kBlock})
    for (const auto& [dtype, width] : dtypes_and_widths()) {
      const auto random = [&](std::int64_t rows, std::uint64_t stream) {
        return random_values(tensor_type(dtype, {rows, kDepth}), Regime::kBounded, 7, stream);
      };
      const std::vector<Values> inputs{random(kRows, 0), random(width, 1), random(width, 2)};
      const TensorType whole = tensor_type(dtype, {kRows, width});
      const TensorType int8 = in_int8(whole, block);
      const OpCall call{"linear_activation_with_codes",
                        {{"activation", "swiglu"}, {"block", block}},
                        inputs,
                        {whole, int8, int8}};
      for (const kernels::Kernel* kernel : rows_of(call.op, call)) {
        std::string row(kernel->name);
        const std::vector<HostTensor> got = outputs_of(row, call);
        const std::string suffix = "with_codes";
        row.replace(row.find(suffix), suffix.size(), "with_products");
        const std::vector<HostTensor> products = outputs_of(row, {"linear_activation_with_products",
                                                                  {{"activation", "swiglu"}},
                                                                  inputs,
                                                                  {whole, whole, whole}});
        EXPECT_EQ(compare_bits(got[0], products[0], {row}).report, "");
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
          const std::vector<HostTensor> want = outputs_of(
              "ref:quantize", {"quantize", {{"block", block}}, {products[1 + i].values()}, {int8}});
          EXPECT_EQ(compare_bits(got[1 + i], want[0], {row, true}).report, "");
        }
        ++num_rows;
      }
    }
  EXPECT_GT(num_rows, 0);
}

TEST(Dequantize, InAGradientBehindAProductGivesTheBitsOfTheOpsApart) {
  constexpr std::int64_t kRows = 130, kDepth = 40;
  int num_rows = 0;
  for (const auto& [dtype, width] : dtypes_and_widths()) {
    const TensorType whole = tensor_type(dtype, {kRows, width});
    const Values dy = random_values(tensor_type(dtype, {kRows, kDepth}), Regime::kBounded, 7, 0);
    const Values weight =
        random_values(tensor_type(dtype, {kDepth, width}), Regime::kBounded, 7, 1);
    std::vector<Values> int8, values;
    for (const std::uint64_t seed : {11, 12}) {
      const std::vector<HostTensor> there = outputs_of(
          "ref:quantize",
          {"quantize", {{"block", kBlock}}, {normal(dtype, kRows, width, seed)}, {in_int8(whole)}});
      int8.push_back(there[0].values());
      const std::vector<HostTensor> back = outputs_of(
          "ref:dequantize",
          {"dequantize", {{"dtype", std::string(to_string(dtype))}}, {int8.back()}, {whole}});
      values.push_back(back[0].values());
    }
    const OpCall call{"linear_activation_gradient",
                      {{"activation", "swiglu"}, {"with_activation", true}},
                      {dy, weight, int8[0], int8[1]},
                      {whole, whole, whole}};
    for (const kernels::Kernel* kernel : rows_of(call.op, call)) {
      const std::string row(kernel->name);
      const std::vector<HostTensor> got = outputs_of(row, call),
                                    want = outputs_of(
                                        row, {call.op,
                                              {{"activation", "swiglu"}, {"with_activation", true}},
                                              {dy, weight, values[0], values[1]},
                                              call.outputs});
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(compare_bits(got[i], want[i], {row}).report, "") << width << ", " << i;
      ++num_rows;
    }
  }
  EXPECT_GT(num_rows, 0);
}

// Rows by hand, in every row of the op: steps of a 127th of the largest, ties to even.
TEST(FakeQuantizeTokens, HasASpacingOfA127thOfTheLargest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> rows{
      {127, -126.75f, 0.5f, 1.5f, -2.5f}, {0, -0.0f, 0, 0, 0},     {-254, 1, 3, 253, -5},
      {0x1p-101f, 0, 0x1p-110f, 0, 0},    {1, kInfinity, 0, 2, 3}, {4, 5, -kInfinity, kNan, 1}},
      wanted{
          {127, -127, 0, 2, -2}, {0, 0, 0, 0, 0}, {-254, 0, 4, 252, -4}, {0, 0, 0, 0, 0}, {}, {}};
  Values x{tensor_type(DType::kFloat32, {6, 5}), {}};
  for (const auto& row : rows) x.data.insert(x.data.end(), row.begin(), row.end());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    x.type.dtype = dtype;
    if (dtype == DType::kBFloat16) x.data[1] = -126.5;
    const OpCall call{"fake_quantize_tokens", {}, {x}, {x.type}};
    std::vector<Values> results{run_reference(call)[0].values()};
    for (const kernels::Kernel* kernel : rows_of(call.op, call))
      results.push_back(run_kernel(*kernel, *ops::find_op(call.op), call).outputs[0].values());
    EXPECT_GT(results.size(), 1u);
    for (const Values& got : results)
      for (std::size_t t = 0; t < rows.size(); ++t)
        for (std::size_t k = 0; k < 5; ++k) {
          const double value = got.data[t * 5 + k];
          if (wanted[t].empty())
            EXPECT_TRUE(std::isnan(value)) << t << " " << k;
          else if (dtype == DType::kBFloat16 && t == 0 && k == 1)
            EXPECT_EQ(value, -126) << "a tie";
          else
            EXPECT_EQ(value, wanted[t][k]) << t << " " << k;
        }
  }
}

}  // namespace
}  // namespace anabatic::testing
