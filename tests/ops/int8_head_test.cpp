// SPDX-License-Identifier: Apache-2.0
// Heads with their gradients, with `fallback`: the definition (kernels/ref) within its bound of
// exact arithmetic, every row within that of its own exponentials, and equal bits however a call is
// cut.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "anabatic/error.h"
#include "ops/kernel_runner.h"
#include "ops/table.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;

Values drawn(DType dtype, std::vector<std::int64_t> shape, std::uint64_t stream) {
  return random_values(tensor_type(dtype, std::move(shape)), Regime::kBounded, 40, stream);
}

// Rows, classes and width; one label in so many does not count.
struct Sizes {
  std::int64_t rows, classes, width, ignored = 7;
};
// Blocks and steps that end early, one row, a vocabulary in two parts, chunks, all rows ignored.
constexpr Sizes kSizes[] = {{1, 33, 32},    {3, 40, 100},    {65, 130, 136}, {300, 385, 64},
                            {40, 2113, 48}, {150, 2048, 33}, {9, 50, 40, 1}};

OpCall head_call(const Sizes& sizes, std::int64_t fallback, std::int64_t slices = 1) {
  const auto [rows, classes, width, ignored] = sizes;
  Values x = drawn(kBf16, {rows, width}, 1), labels{tensor_type(DType::kInt32, {rows}), {}};
  const Values weight = drawn(kBf16, {classes, width}, 2);
  // One large element in some rows, so that their blocks fall back.
  for (std::int64_t t = 0; t < rows; t += 3)
    x.data[static_cast<std::size_t>(t * width + t % width)] *= 16;
  for (std::int64_t t = 0; t < rows; ++t)
    labels.data.push_back(t % ignored == ignored - 1 ? -100
                                                     : static_cast<double>(t * 31 % classes / 2));
  spec::Attributes attributes{{"dloss", 0.75}, {"fallback", fallback}};
  if (slices > 1) attributes["slices"] = slices;
  return {"head_loss_with_gradient",
          attributes,
          {x, weight, labels, {tensor_type(kF32, {}), {0.125}}},
          {tensor_type(kF32, {}), x.type, tensor_type(kF32, weight.type.shape)}};
}

// The same with weights of rows: of either sign, some zero.
OpCall weighted(OpCall call) {
  Values weights = drawn(kF32, {call.inputs[0].type.dim(0)}, 3);
  for (std::size_t t = 0; t < weights.data.size(); t += 5) weights.data[t] = 0;
  call.inputs.push_back(std::move(weights));
  return call;
}

// The same for a frozen weight.
OpCall frozen(OpCall call) {
  call.op = "head_loss_with_input_gradient";
  call.outputs.pop_back();
  return call;
}

OpCall without_int8(OpCall call) {
  call.attributes.erase("fallback");
  return call;
}

// Calls body(kernel) for each row under test that takes the call.
template <class Body>
void for_rows(const OpCall& call, Body&& body) {
  bool is_alone = true;  // the definition
  for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
    if (!supports(*kernel, call) || is_reference(*kernel)) continue;
    is_alone = false;
    SCOPED_TRACE(kernel->name);
    if (is_under_test(kernel->name)) body(*kernel);
  }
  EXPECT_FALSE(is_alone);
}

// "_int8_avx2" of a kernel's name.
std::string_view variant(const kernels::Kernel& kernel) {
  return kernel.name.substr(kernel.name.find(kernel.op) + kernel.op.size());
}

std::vector<HostTensor> run(const kernels::Kernel& kernel, const OpCall& call,
                            const RunOptions& options) {
  RunResult result = run_kernel(kernel, *ops::find_op(call.op), call, options);
  EXPECT_EQ(result.violation, "");
  return std::move(result.outputs);
}

std::vector<Values> values_of(const std::vector<HostTensor>& tensors) {
  std::vector<Values> values;
  for (const HostTensor& tensor : tensors) values.push_back(tensor.values());
  return values;
}

TEST(Int8Head, IsDefinedWithinItsBoundOfExactArithmetic) {
  for (const Sizes& sizes : kSizes)
    for (const std::int64_t fallback : {64, 128}) {
      SCOPED_TRACE(fmt::format("{} rows, {} classes", sizes.rows, sizes.classes));
      const OpCall plain = head_call(sizes, fallback);
      for (const OpCall& call : {plain, weighted(plain)}) {
        const std::vector<Values> want = run_in_double(without_int8(call));
        const auto tolerances = int8_head_tolerances(call, want);
        const std::vector<Values> got = values_of(run_reference(call));
        for (std::size_t o = 0; o < want.size(); ++o) {
          Values of_type = want[o];
          of_type.type = call.outputs[o];
          EXPECT_EQ(compare(got[o], of_type, tolerances[o], {"", true}).report, "") << o;
        }
      }
    }
}

TEST(Int8Head, RowsDifferFromTheDefinitionByTheirExponentials) {
  for (const Sizes& sizes : kSizes)
    for (const std::int64_t fallback : {0, 16, 64, 128}) {
      SCOPED_TRACE(
          fmt::format("{} rows, {} classes, fallback {}", sizes.rows, sizes.classes, fallback));
      const OpCall plain = head_call(sizes, fallback);
      for (const OpCall& call : {plain, weighted(plain)}) {
        const std::vector<Values> want = values_of(run_reference(call));
        const auto tolerances = int8_head_definition_tolerances(call, want);
        for_rows(call, [&](const kernels::Kernel& kernel) {
          const std::vector<HostTensor> got = run(kernel, call, {.num_threads = 2});
          for (std::size_t o = 0; o < want.size(); ++o)
            EXPECT_EQ(compare(got[o].values(), want[o], tolerances[o], {"", true}).report, "") << o;
        });
      }
    }
}

// What a wrong kernel could leave out is beyond that bound.
TEST(Int8Head, TheBoundOfTheDefinitionFindsFaults) {
  const OpCall call = head_call({150, 300, 136}, 16);
  const std::vector<Values> want = values_of(run_reference(call));
  const auto tolerances = int8_head_definition_tolerances(call, want);
  const auto is_found = [&](const OpCall& fault, std::size_t output) {
    return !compare(run_reference(fault)[output].values(), want[output], tolerances[output])
                .report.empty();
  };
  const OpCall coarser = head_call({150, 300, 136}, 128);  // blocks do not fall back
  OpCall other_label = call, moved = call, shorter = call;
  other_label.inputs[2].data[4] += 1;
  for (std::size_t k = 0; k < 136; ++k) moved.inputs[1].data[17 * 136 + k] *= -1;  // one class
  shorter.inputs[2].data[140] = -100;  // a row of the second block of tokens
  for (std::size_t o = 0; o < 3; ++o) {
    EXPECT_FALSE(is_found(call, o));
    EXPECT_TRUE(is_found(coarser, o)) << o;
    EXPECT_TRUE(is_found(other_label, o)) << o;
    EXPECT_TRUE(is_found(moved, o)) << o;
    EXPECT_TRUE(is_found(shorter, o)) << o;
    EXPECT_TRUE(is_found(without_int8(call), o)) << o;
  }
}

// Threads, chunks, exponentials in the gradient's bytes or outside, and results in place of x.
TEST(Int8Head, HasEqualBitsHoweverItIsCut) {
  for (const Sizes& sizes : {Sizes{300, 385, 136}, Sizes{270, 2113, 48}, Sizes{129, 70, 512}}) {
    const OpCall call = head_call(sizes, 16);
    std::vector<Values> zeroes;
    for (const TensorType& type : call.outputs)
      zeroes.push_back(
          {type, std::vector<double>(static_cast<std::size_t>(type.num_elements()), 0.0)});
    for_rows(call, [&](const kernels::Kernel& kernel) {
      const std::vector<HostTensor> want = run(kernel, call, {.num_threads = 1});
      const auto expect_same = [&](const OpCall& cut, const RunOptions& options) {
        const std::vector<HostTensor> got = run(kernel, cut, options);
        for (std::size_t o = 0; o < want.size(); ++o)
          EXPECT_EQ(compare_bits(got[o], want[o], {"", true}).report, "") << o;
      };
      for (const int threads : {1, 2, 3, 4})
        for (const std::int64_t slices : {1, 2, 3}) {
          SCOPED_TRACE(fmt::format("{} threads, {} slices", threads, slices));
          const OpCall cut = head_call(sizes, 16, slices);
          expect_same(cut, {.num_threads = threads});
          expect_same(cut, {.num_threads = threads, .before = zeroes});
        }
      expect_same(call, {.num_threads = 2, .in_place = true});
    });
  }
}

TEST(Int8Head, AddsToGradients) {
  const OpCall call = head_call({150, 130, 64}, 64);
  std::vector<Values> before;
  for (std::size_t o = 0; o < 3; ++o)
    before.push_back(drawn(call.outputs[o].dtype, call.outputs[o].shape, 10 + o));
  const std::vector<Values> want = values_of(run_reference(call, before)),
                            alone = values_of(run_reference(call));
  const auto tolerances = int8_head_definition_tolerances(call, want);
  for_rows(call, [&](const kernels::Kernel& kernel) {
    const std::vector<HostTensor> got = run(kernel, call, {.num_threads = 2, .before = before});
    for (std::size_t o = 0; o < want.size(); ++o) {
      EXPECT_EQ(compare(got[o].values(), want[o], tolerances[o], {"", true}).report, "") << o;
      EXPECT_NE(compare(got[o].values(), alone[o], tolerances[o], {"", true}).report, "") << o;
    }
  });
}

// A row whose label is far below the largest logit shifts by that one instead.
TEST(Int8Head, ShiftsRowsWhoseLabelIsUnlikely) {
  OpCall call = head_call({40, 300, 64}, 64);
  for (double& value : call.inputs[0].data) value *= 64;
  const std::vector<Values> want = values_of(run_reference(call));
  const auto tolerances = int8_head_definition_tolerances(call, want);
  for (const Values& output : want)
    for (const double value : output.data) ASSERT_TRUE(std::isfinite(value));
  EXPECT_GT(want[0].data[0], 50);  // a mean far beyond log of the classes
  for_rows(call, [&](const kernels::Kernel& kernel) {
    const std::vector<HostTensor> got = run(kernel, call, {.num_threads = 2});
    for (std::size_t o = 0; o < want.size(); ++o)
      EXPECT_EQ(compare(got[o].values(), want[o], tolerances[o], {"", true}).report, "") << o;
  });
}

// The definition and each row: chunks of other sizes, threads, results in place of x, sums.
TEST(Int8Head, OfAFrozenWeightHasTheBitsOfTheOther) {
  OpCall unlikely = head_call({40, 300, 64}, 64);
  for (double& value : unlikely.inputs[0].data) value *= 64;
  std::vector<OpCall> calls{unlikely, weighted(head_call({65, 130, 136}, 16))};
  for (const Sizes& sizes : kSizes) calls.push_back(head_call(sizes, 64));
  calls.push_back(head_call({1200, 70, 40}, 64));
  for (const OpCall& call : calls) {
    const auto expect_same = [](const std::vector<Values>& got, const std::vector<Values>& want) {
      ASSERT_EQ(got.size(), 2u);
      for (std::size_t o = 0; o < 2; ++o) EXPECT_EQ(got[o].data, want[o].data) << o;
    };
    const OpCall of_frozen = frozen(call);
    expect_same(values_of(run_reference(of_frozen)), values_of(run_reference(call)));
    std::vector<Values> before;
    for (std::size_t o = 0; o < 3; ++o)
      before.push_back(drawn(call.outputs[o].dtype, call.outputs[o].shape, 10 + o));
    const std::vector<Values> before_frozen(before.begin(), before.begin() + 2);
    int num_rows = 0;
    for_rows(of_frozen, [&](const kernels::Kernel& kernel) {
      ++num_rows;
      for_rows(call, [&](const kernels::Kernel& other) {
        if (variant(other) != variant(kernel)) return;
        const std::vector<Values> want = values_of(run(other, call, {.num_threads = 1})),
                                  sums = values_of(
                                      run(other, call, {.num_threads = 1, .before = before}));
        for (const int threads : {1, 2, 3}) {
          expect_same(values_of(run(kernel, of_frozen, {.num_threads = threads})), want);
          expect_same(
              values_of(run(kernel, of_frozen, {.num_threads = threads, .before = before_frozen})),
              sums);
        }
        expect_same(values_of(run(kernel, of_frozen, {.num_threads = 2, .in_place = true})), want);
      });
    });
    EXPECT_GT(num_rows, 0);
  }
}

TEST(Int8Head, IsNanWhereAnOperandIsNotFinite) {
  const double kNan = std::numeric_limits<double>::quiet_NaN(),
               kInfinity = std::numeric_limits<double>::infinity();
  OpCall of_x = head_call({20, 64, 40}, 64), of_weight = of_x;
  of_x.inputs[0].data[2 * 40 + 3] = kInfinity;
  of_weight.inputs[1].data[5] = kNan;
  for (const OpCall& call : {of_x, of_weight, frozen(of_x), frozen(of_weight)})
    for_rows(call, [&](const kernels::Kernel& kernel) {
      const std::vector<Values> got = values_of(run(kernel, call, {.num_threads = 2}));
      EXPECT_TRUE(std::isnan(got[0].data[0]));
      for (std::size_t k = 0; k < 40; ++k) EXPECT_TRUE(std::isnan(got[1].data[2 * 40 + k])) << k;
      for (std::size_t k = 0; k < 40 && got.size() > 2; ++k)
        EXPECT_TRUE(std::isnan(got[2].data[7 * 40 + k])) << k;
    });
}

TEST(Int8Head, RefusesWhatItCannotMultiply) {
  const OpCall call = head_call({8, 40, 40}, 64);
  const auto infer = [](const OpCall& of) {
    std::vector<TensorType> inputs;
    for (const Values& input : of.inputs) inputs.push_back(input.type);
    return ops::find_op(of.op)->infer(inputs, of.attributes);
  };
  EXPECT_EQ(infer(call), call.outputs);
  EXPECT_EQ(infer(weighted(call)), call.outputs);
  OpCall in_f32 = call, beyond = call;
  in_f32.inputs[0].type.dtype = in_f32.inputs[1].type.dtype = kF32;
  beyond.attributes["fallback"] = std::int64_t{129};
  EXPECT_EQ(infer(frozen(call)), frozen(call).outputs);
  for (const OpCall& refused : {in_f32, beyond, frozen(in_f32), frozen(beyond)})
    EXPECT_THROW(infer(refused), InvalidArgument);
  OpCall other = call;
  other.op = "head_loss";
  EXPECT_THROW(infer(other), InvalidArgument);
}

}  // namespace
}  // namespace anabatic::testing
