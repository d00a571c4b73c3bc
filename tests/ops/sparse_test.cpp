// SPDX-License-Identifier: Apache-2.0
// Products with sparse weights against dense products of the masked weight, by the rows of the same
// engine: equal bits, for absent blocks would have added zeroes.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>

#include "anabatic/error.h"
#include "base/philox.h"
#include "ops/kernel_runner.h"
#include "ops/sparse/sparse_linear.h"
#include "ops/table.h"
#include "support/comparator.h"
#include "support/error_message.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"

namespace anabatic::testing {
namespace {

using spec::SparseLayout;
using spec::SparsityPattern;

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kI32 = DType::kInt32;

Values drawn(DType dtype, std::vector<std::int64_t> shape, std::uint64_t stream) {
  return random_values(tensor_type(dtype, std::move(shape)), Regime::kBounded, 40, stream);
}

// A stack of sparse matrices [N,K] and rows for them; one matrix without offsets.
struct Case {
  const char* name;
  SparsityPattern pattern;
  std::vector<std::int64_t> rows;  // of each matrix
  std::int64_t out, in, kept;
  bool is_grouped = true;
};
const Case kCases[] = {
    {"NoBlock", SparsityPattern::kBlock32, {12, 5}, 64, 64, 0},
    {"OneBlock", SparsityPattern::kBlock32, {30, 0, 7}, 96, 64, 1},
    {"AllBlocks", SparsityPattern::kBlock32, {97, 40}, 64, 96, 6},
    {"HalfOfOddSides", SparsityPattern::kBlock32, {0, 61, 3}, 70, 100, 6},
    {"DeepSums", SparsityPattern::kBlock32, {13, 2}, 40, 1090, 40},
    {"DeepSumsOfGradients", SparsityPattern::kBlock32, {7}, 1120, 40, 40, false},
    {"Dense", SparsityPattern::kBlock32, {300}, 128, 160, 9, false},
    {"ManyRows", SparsityPattern::kBlock32, {1300}, 64, 32, 1, false},
    {"SmallBlocks", SparsityPattern::kBlock16, {50, 0, 31}, 80, 48, 7},
    {"SmallBlocksOfOddSides", SparsityPattern::kBlock16, {19}, 50, 1100, 90, false},
    {"TwoOfFour", SparsityPattern::kTwoOfFour, {30, 0, 7}, 64, 96, 0},
    {"TwoOfFourOfOddSides", SparsityPattern::kTwoOfFour, {0, 61, 3}, 36, 44, 0},
    {"TwoOfFourInDeepSums", SparsityPattern::kTwoOfFour, {13, 2}, 1060, 2100, 0},
    {"TwoOfFourManyRows", SparsityPattern::kTwoOfFour, {301}, 100, 64, 0, false},
    {"TwoOfFourOnce", SparsityPattern::kTwoOfFour, {1}, 4, 4, 0, false},
};

struct Sparse {
  Case of;
  DType dtype;
  Values x, dy, weight, mask, offsets;
  std::vector<Values> biases{};

  Sparse(const Case& given, DType its_dtype) : of(given), dtype(its_dtype) {
    std::int64_t total = 0;
    std::vector<double> ends{0};
    for (const std::int64_t count : of.rows) ends.push_back(static_cast<double>(total += count));
    const auto experts = static_cast<std::int64_t>(of.rows.size());
    x = drawn(dtype, {total, of.in}, 1);
    dy = drawn(dtype, {total, of.out}, 2);
    std::vector<std::int64_t> shape{of.out, of.in};
    if (of.is_grouped) shape.insert(shape.begin(), experts);
    weight = drawn(kF32, shape, 3);
    offsets = {tensor_type(kI32, {experts + 1}), ends};
    const CaseFile file{.op = "sparse_index"};
    CaseLine line;
    line.inputs = {{.type = to_string(spec::mask_type(of.pattern, weight.type)),
                    .recipe = "mask",
                    .options = {std::to_string(of.kept)}}};
    mask = make_call(file, line, "f32", Regime::kBounded, 40).inputs[0];
    if (of.pattern == SparsityPattern::kTwoOfFour) choose_two_of_four();
  }

  // In each row and column of each tile of 4 x 4.
  void choose_two_of_four() {
    for (std::int64_t i = 0; i < mask.type.num_elements(); ++i) {
      const std::int64_t row = i / of.in, column = i % of.in;
      const std::uint64_t bits =
          random_bits(40, 5, static_cast<std::uint64_t>(row / 4 * of.in + column / 4));
      const std::uint64_t place =
          (static_cast<std::uint64_t>(column - row + of.out * 4) + bits) % 4;
      mask.data[static_cast<std::size_t>(i)] = place == 0 || place == 1 + bits / 4 % 3 ? 1 : 0;
    }
  }

  SparseLayout layout(bool transposed) const {
    return spec::sparse_layout(of.pattern, of.out, of.in, of.kept, transposed);
  }
  std::string pattern() const { return std::string(to_string(of.pattern)); }

  Values index(bool transposed) const {
    return result({"sparse_index",
                   {{"columns", of.in},
                    {"kept", layout(transposed).kept},
                    {"pattern", pattern()},
                    {"rows", of.out},
                    {"transposed", transposed}},
                   {mask},
                   {ops::sparse_index_type(weight.type, layout(transposed))}});
  }
  Values values(bool transposed) const {
    return result({"pack_sparse",
                   {{"dtype", std::string(to_string(dtype))},
                    {"kept", layout(transposed).kept},
                    {"pattern", pattern()},
                    {"transposed", transposed}},
                   {weight, index(transposed)},
                   {ops::sparse_values_type(weight.type, dtype, layout(transposed))}});
  }
  // What every row gives.
  static Values result(const OpCall& call) {
    const std::vector<HostTensor> want = run_reference(call);
    int num_rows = 0;
    for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
      if (!is_under_test(kernel->name) || !supports(*kernel, call)) continue;
      ++num_rows;
      const RunResult got = run_kernel(*kernel, *ops::find_op(call.op), call, {.num_threads = 2});
      EXPECT_EQ(got.violation, "") << kernel->name;
      EXPECT_EQ(compare_bits(got.outputs[0], want[0], {"", true}).report, "") << kernel->name;
    }
    return want[0].values();
  }

  bool is_present(std::int64_t matrix, std::int64_t n, std::int64_t k) const {
    const std::int64_t side = spec::mask_block(of.pattern), columns = mask.type.dim(-1);
    const std::int64_t at = (matrix * mask.type.dim(-2) + n / side) * columns + k / side;
    return mask.data[static_cast<std::size_t>(at)] != 0;
  }
  // Zero where the mask is.
  Values masked(Values values) const {
    for (std::size_t i = 0; i < values.data.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (!is_present(at / (of.out * of.in), at / of.in % of.out, at % of.in)) values.data[i] = 0;
    }
    return values;
  }
  Values dense_weight(bool transposed) const {
    TensorType type = with_dtype(weight.type, dtype);
    type.layout = intern(transposed ? "panels_transposed" : "panels");
    return run_reference({"pack",
                          {{"dtype", std::string(to_string(dtype))},
                           {"layout", std::string(transposed ? "panels_transposed" : "panels")}},
                          {masked(weight)},
                          {type}})[0]
        .values();
  }
  OpCall call(std::string_view dense, std::string_view grouped, spec::Attributes attributes,
              std::vector<Values> inputs, TensorType output) const {
    if (of.is_grouped) inputs.push_back(offsets);
    return {of.is_grouped ? grouped : dense,
            std::move(attributes),
            std::move(inputs),
            {std::move(output)}};
  }
};

// Each row of `got` has the bits of the row of the same engine of `want`.
void expect_equal(const OpCall& got, const OpCall& want, std::span<const Values> before = {},
                  const Sparse* masked = nullptr) {
  SCOPED_TRACE(got.op);
  int num_rows = 0;
  for (const kernels::Kernel* kernel : kernels::candidates(got.op)) {
    if (!is_under_test(kernel->name) || !supports(*kernel, got)) continue;
    const std::string name(kernel->name);
    const std::string of_want =
        fmt::format("{}{}", name.substr(0, name.find(':') + 1),
                    std::string(want.op) + name.substr(name.find(':') + 1 + got.op.size()));
    const kernels::Kernel* dense = kernels::find_kernel(of_want);
    ASSERT_NE(dense, nullptr) << of_want;
    ASSERT_TRUE(supports(*dense, want)) << of_want;
    const auto run = [&](const kernels::Kernel& row, const OpCall& call, int threads) {
      const RunResult result =
          run_kernel(row, *ops::find_op(call.op), call, {.num_threads = threads, .before = before});
      EXPECT_EQ(result.violation, "") << row.name;
      return result.outputs[0].values();
    };
    Values expected = run(*dense, want, 1);
    if (masked != nullptr) {
      const Values of_present = masked->masked(expected);
      for (std::size_t i = 0; i < expected.data.size(); ++i)
        if (const double value = of_present.data[i]; value != expected.data[i])
          expected.data[i] = before.empty() ? 0.0 : before[0].data[i];
    }
    for (const int threads : {1, 2, 3})
      EXPECT_EQ(
          compare_bits(HostTensor(run(*kernel, got, threads)), HostTensor(expected), {"", true})
              .report,
          "")
          << name << " on " << threads;
    ++num_rows;
  }
  EXPECT_GT(num_rows, 0) << got.op;
}

class SparseProducts : public ::testing::TestWithParam<std::tuple<Case, DType>> {
 protected:
  const Sparse sparse_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(SparseProducts, HaveTheBitsOfTheMaskedDenseOnes) {
  const Sparse& s = sparse_;
  expect_equal(s.call("sparse_linear", "grouped_sparse_linear",
                      {{"out", s.of.out}, {"pattern", s.pattern()}},
                      {s.x, s.values(false), s.index(false)}, s.dy.type),
               s.call("linear", "grouped_linear", {}, {s.x, s.dense_weight(false)}, s.dy.type));
  spec::Attributes of_dense;
  if (!s.of.is_grouped) of_dense["output_dtype"] = std::string(to_string(s.dtype));
  expect_equal(s.call("sparse_linear_input_gradient", "grouped_sparse_linear_input_gradient",
                      {{"in", s.of.in}, {"pattern", s.pattern()}},
                      {s.dy, s.values(true), s.index(true)}, s.x.type),
               s.call("linear_input_gradient", "grouped_linear_input_gradient", of_dense,
                      {s.dy, s.dense_weight(true)}, s.x.type));
}

TEST_P(SparseProducts, HaveWeightGradientsOfPresentBlocksWithTheBitsOfTheDenseOnes) {
  const Sparse& s = sparse_;
  if (s.of.pattern == SparsityPattern::kTwoOfFour) return;  // those of 2:4 are dense
  const OpCall got =
      s.call("sparse_linear_weight_gradient", "grouped_sparse_linear_weight_gradient",
             {{"pattern", s.pattern()}}, {s.x, s.dy, s.index(false)}, s.weight.type);
  const OpCall want = s.call("linear_weight_gradient", "grouped_linear_weight_gradient", {},
                             {s.x, s.dy}, s.weight.type);
  expect_equal(got, want, {}, &s);
  const std::vector<Values> before{drawn(kF32, s.weight.type.shape, 9)};
  expect_equal(got, want, before, &s);
}

TEST_P(SparseProducts, HaveWeightGradientsThatLeaveWhatIsAbsentAsItIs) {
  const Sparse& s = sparse_;
  if (s.of.pattern == SparsityPattern::kTwoOfFour) return;
  const OpCall whole =
      s.call("sparse_linear_weight_gradient", "grouped_sparse_linear_weight_gradient",
             {{"pattern", s.pattern()}}, {s.x, s.dy, s.index(false)}, s.weight.type);
  OpCall part = whole;
  part.attributes["present_only"] = true;
  for (const kernels::Kernel* kernel : kernels::candidates(whole.op)) {
    if (!is_under_test(kernel->name) || !supports(*kernel, whole)) continue;
    const auto run = [&](const OpCall& call) {
      const RunResult result = run_kernel(*kernel, *ops::find_op(call.op), call);
      EXPECT_EQ(result.violation, "") << kernel->name;
      return result.outputs[0].values().data;
    };
    const std::vector<double> want = run(whole), got = run(part);
    std::int64_t differing = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (s.is_present(at / (s.of.out * s.of.in), at / s.of.in % s.of.out, at % s.of.in))
        ASSERT_EQ(got[i], want[i]) << kernel->name << " " << i;
      else
        differing += got[i] != want[i] ? 1 : 0;  // a buffer begins with NaN
    }
    const bool is_whole = s.of.kept == s.mask.type.dim(-2) * s.mask.type.dim(-1);
    EXPECT_EQ(differing > 0, !is_whole) << kernel->name;
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Case, DType>>& test) {
  return fmt::format("{}_{}", std::get<0>(test.param).name, to_string(std::get<1>(test.param)));
}
INSTANTIATE_TEST_SUITE_P(Cases, SparseProducts,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(kF32, kBf16)),
                         name_of);

std::vector<std::string> errors_of(const OpCall& call) {
  std::vector<std::string> errors;
  for (const kernels::Kernel* kernel : kernels::candidates(call.op))
    if (is_under_test(kernel->name) && supports(*kernel, call))
      errors.push_back(message_of<InvalidArgument>(
          [&] { (void)run_kernel(*kernel, *ops::find_op(call.op), call); }));
  return errors;
}

TEST(SparseIndex, IsRefusedWhereItPointsElsewhere) {
  const Sparse s(kCases[2], kBf16);
  Values index = s.index(false);
  const auto call = [&] {
    return s.call("sparse_linear", "grouped_sparse_linear",
                  {{"out", s.of.out}, {"pattern", s.pattern()}}, {s.x, s.values(false), index},
                  s.dy.type);
  };
  index.data.back() = 3;  // of three blocks along the depth
  for (const std::string& error : errors_of(call()))
    EXPECT_TRUE(error.ends_with(", got 3")) << error;
  index = s.index(false);
  index.data[1] = 7;
  for (const std::string& error : errors_of(call()))
    EXPECT_NE(error.find("offsets"), error.npos) << error;
}

TEST(SparseIndex, RefusesAMaskThatKeepsAnotherNumberOfBlocks) {
  Sparse s(kCases[3], kBf16);
  for (double& present : s.mask.data) present = 1;
  const OpCall call{"sparse_index",
                    {{"columns", s.of.in},
                     {"kept", s.of.kept},
                     {"pattern", s.pattern()},
                     {"rows", s.of.out},
                     {"transposed", false}},
                    {s.mask},
                    {ops::sparse_index_type(s.weight.type, s.layout(false))}};
  for (const std::string& error : errors_of(call))
    EXPECT_EQ(error, "[sparse_index] expected 6 present blocks in matrix 0 of the mask, got 12");
}

TEST(SparseIndex, RefusesAMaskThatIsNotTwoOfFour) {
  Sparse s(kCases[10], kBf16);
  ASSERT_EQ(s.of.pattern, SparsityPattern::kTwoOfFour);
  for (std::size_t k = 4; k < 8; ++k) s.mask.data[k] = k < 7 ? 1 : 0;
  const OpCall call{"sparse_index",
                    {{"columns", s.of.in},
                     {"kept", s.layout(false).kept},
                     {"pattern", s.pattern()},
                     {"rows", s.of.out},
                     {"transposed", false}},
                    {s.mask},
                    {ops::sparse_index_type(s.weight.type, s.layout(false))}};
  const std::vector<std::string> errors = errors_of(call);
  EXPECT_EQ(errors.size() > 1, is_under_test("cpu_portable"));
  for (const std::string& error : errors)
    EXPECT_EQ(error,
              "[sparse_index] expected two present weights of each four, got 3 in matrix 0, row 0");
}

}  // namespace
}  // namespace anabatic::testing
