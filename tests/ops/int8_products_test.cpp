// SPDX-License-Identifier: Apache-2.0
// Products whose weights are in int8 panels, and weight gradients with `fallback`, as ops: the
// definition (kernels/ref) within its bound, and every other row with its bits. Unit tests have the
// products themselves (int8_products_test).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "anabatic/error.h"
#include "ops/kernel_runner.h"
#include "ops/pack.h"
#include "ops/table.h"
#include "spec/product.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "support/tolerance.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kI32 = DType::kInt32;

Values drawn(DType dtype, std::vector<std::int64_t> shape, std::uint64_t stream) {
  return random_values(tensor_type(dtype, std::move(shape)), Regime::kBounded, 39, stream);
}

// One large element in some rows, so that their blocks fall back.
Values with_outliers(Values values) {
  const auto width = static_cast<std::size_t>(values.type.dim(-1));
  for (std::size_t row = 0; row * width < values.data.size(); row += 3)
    values.data[row * width + row % width] *= 512;
  return values;
}

TensorType in_tiles(const TensorType& rows, bool transposed) {
  TensorType type = quantized(tensor_type(kF32, rows.shape), int8_tile_format());
  type.layout = panels_layout(transposed);
  return type;
}

OpCall pack_call(const Values& from, const TensorType& packed) {
  return {"pack", ops::packing_attributes(packed), {from}, {packed}};
}

Values packed(const Values& weight, bool transposed) {
  return run_reference(pack_call(weight, in_tiles(weight.type, transposed)))[0].values();
}

Values integers(const std::vector<double>& data) {
  return {tensor_type(kI32, {static_cast<std::int64_t>(data.size())}), data};
}

// Calls body(kernel) for each row under test that takes the call.
template <class Body>
void for_rows(const OpCall& call, Body&& body) {
  bool is_alone = true;  // the definition
  for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
    if (!supports(*kernel, call)) continue;
    is_alone &= is_reference(*kernel);
    SCOPED_TRACE(kernel->name);
    if (is_under_test(kernel->name)) body(*kernel);
  }
  EXPECT_FALSE(is_alone) << call.op;
}

TensorType type_of(DType dtype, std::vector<std::int64_t> shape) {
  return tensor_type(dtype, std::move(shape));
}

void expect_reference_bits(const OpCall& call, std::span<const Values> before = {}) {
  SCOPED_TRACE(call.op);
  const ir::OpSchema& schema = *ops::find_op(call.op);
  std::vector<TensorType> inputs;
  for (const Values& input : call.inputs) inputs.push_back(input.type);
  EXPECT_EQ(schema.infer(inputs, call.attributes), call.outputs);
  const std::vector<HostTensor> want = run_reference(call, before);
  for_rows(call, [&](const kernels::Kernel& kernel) {
    for (const int threads : is_reference(kernel) ? std::vector{1} : std::vector{1, 2, 3}) {
      const RunResult got =
          run_kernel(kernel, schema, call, {.num_threads = threads, .before = before});
      EXPECT_EQ(got.violation, "");
      for (std::size_t o = 0; o < want.size(); ++o)
        if (call.outputs[o].dtype != DType::kFloat64) {
          EXPECT_EQ(compare_bits(got.outputs[o], want[o], {"", true}).report, "") << o;
        }
    }
  });
}

// An input gradient of experts with packed weights, cut by groups of them: it makes the packings
// itself of these weights, in the order of its stacks.
OpCall in_slices(const OpCall& whole, const std::vector<Values>& weights, std::int64_t slices) {
  OpCall cut = whole;
  cut.attributes["slices"] = slices;
  cut.attributes[std::string(spec::kPackedFormat)] = to_string(int8_tile_format());
  auto weight = weights.begin();
  for (Values& input : cut.inputs)
    if (input.type.ndim() == 3) input = *weight++;
  return cut;
}

constexpr std::int64_t kSlices[] = {1, 2, 3, 99};

void expect_bits_in_slices(const OpCall& whole, const std::vector<Values>& weights) {
  const HostTensor want = run_reference(whole)[0].clone();
  for (const std::int64_t slices : kSlices) {
    const OpCall cut = in_slices(whole, weights, slices);
    expect_reference_bits(cut);
    EXPECT_TRUE(run_reference(cut)[0].same_bits(want)) << slices;
  }
}

// The row of the same parts that runs whole calls.
const kernels::Kernel& whole_row(const kernels::Kernel& of_slices) {
  std::string name(of_slices.name);
  const std::string_view form = "_slices";
  if (const std::size_t at = name.find(form); at != name.npos) name.erase(at, form.size());
  for (const kernels::Kernel* kernel : kernels::candidates(of_slices.op))
    if (kernel->name == name) return *kernel;
  throw InvalidArgument("no row " + name);
}

// Lines along the depth: rows of a matrix, or its columns.
std::vector<float> lines_of(const Values& values, bool of_columns) {
  const auto rows = static_cast<std::size_t>(values.type.dim(0)),
             columns = static_cast<std::size_t>(values.type.dim(1));
  std::vector<float> lines;
  for (std::size_t line = 0; line < (of_columns ? columns : rows); ++line)
    for (std::size_t k = 0; k < (of_columns ? rows : columns); ++k)
      lines.push_back(
          static_cast<float>(values.data[of_columns ? k * columns + line : line * columns + k]));
  return lines;
}

void expect_within(const HostTensor& got, const Int8Operand& a, const Int8Operand& b) {
  const std::vector<double> bounds = int8_product_tolerances(a, b, got.type().dtype);
  for (std::int64_t i = 0; i < a.lines; ++i)
    for (std::int64_t j = 0; j < b.lines; ++j) {
      double want = 0;
      for (std::int64_t k = 0; k < a.depth; ++k)
        want += double{a.values[static_cast<std::size_t>(i * a.depth + k)]} *
                double{b.values[static_cast<std::size_t>(j * b.depth + k)]};
      const std::int64_t at = i * b.lines + j;
      ASSERT_LE(std::abs(got.get(at) - want), bounds[static_cast<std::size_t>(at)])
          << i << ' ' << j;
    }
}

TEST(Int8Packings, HaveOneSetOfValuesInBothDirections) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{17, 33}, {130, 70}, {3, 37, 129}, {2, 300, 260}, {0, 40}, {1, 1}})
    for (const DType dtype : {kF32, kBf16}) {
      Values weight = drawn(dtype, shape, 1);
      if (weight.data.size() > 4000) weight.data[17] = std::numeric_limits<double>::quiet_NaN();
      const TensorType forward = in_tiles(weight.type, false),
                       transposed = in_tiles(weight.type, true);
      const HostTensor first = run_reference(pack_call(weight, forward))[0].clone();
      expect_reference_bits(pack_call(weight, forward));
      expect_reference_bits(pack_call(weight, transposed));
      const OpCall turn = pack_call(first.values(), transposed);
      expect_reference_bits(turn);
      EXPECT_TRUE(
          run_reference(turn)[0].same_bits(run_reference(pack_call(weight, transposed))[0]));
      // Sums of lines, which values do not hold.
      EXPECT_TRUE(first.same_bits(HostTensor(first.values())));
    }
}

TEST(Int8Packings, RefuseOtherLayoutsAndParts) {
  const auto infer = [](const TensorType& x, spec::Attributes attributes) {
    return ops::find_op("pack")->infer(std::vector{x}, attributes);
  };
  const spec::Attributes good = ops::packing_attributes(in_tiles(type_of(kF32, {40, 40}), false));
  EXPECT_NO_THROW(infer(type_of(kF32, {40, 40}), good));
  EXPECT_THROW(infer(type_of(DType::kFloat64, {40, 40}), good), InvalidArgument);
  EXPECT_THROW(infer(type_of(kF32, {40}), good), InvalidArgument);
  EXPECT_THROW(infer(in_tiles(type_of(kF32, {40, 40}), true), good), InvalidArgument);
  spec::Attributes other = good;
  other["layout"] = std::string(ops::kRowMajorName);
  EXPECT_THROW(infer(type_of(kF32, {40, 40}), other), InvalidArgument);
  other = good;
  other["first_row"] = std::int64_t{0};
  EXPECT_THROW(infer(type_of(kF32, {40, 40}), other), InvalidArgument);
}

// T tokens, products of [N,K] with them.
struct Sizes {
  std::int64_t t, n, k;
};
constexpr Sizes kSizes[] = {{0, 40, 36}, {1, 33, 32}, {3, 48, 100}, {65, 130, 300}, {129, 40, 576}};
constexpr std::int64_t kFallbacks[] = {0, 16, 64, 128};

TEST(Int8Products, StayWithinTheirBound) {
  for (const auto& [t, n, k] : kSizes) {
    const Values x = drawn(kBf16, {t, k}, 2), weight = drawn(kF32, {n, k}, 3),
                 dy = drawn(kBf16, {t, n}, 4);
    const std::int64_t fallback = 128;
    const std::vector<float> rows_of_w = lines_of(weight, false),
                             columns_of_w = lines_of(weight, true), rows_of_x = lines_of(x, false),
                             columns_of_x = lines_of(x, true), rows_of_dy = lines_of(dy, false),
                             columns_of_dy = lines_of(dy, true);
    for (const DType dtype : {kBf16, kF32}) {
      const std::string name(to_string(dtype));
      const OpCall forward{"linear",
                           {{"fallback", fallback}, {"output_dtype", name}},
                           {x, packed(weight, false)},
                           {type_of(dtype, {t, n})}};
      expect_within(run_reference(forward)[0], {rows_of_x, t, k}, {rows_of_w, n, k, 128});
      expect_reference_bits(forward);
      const OpCall backward{"linear_input_gradient",
                            {{"output_dtype", name}},
                            {dy, packed(weight, true)},
                            {type_of(dtype, {t, k})}};
      expect_within(run_reference(backward)[0], {rows_of_dy, t, n}, {columns_of_w, k, n, 128});
      expect_reference_bits(backward);
    }
    const OpCall gradient{
        "linear_weight_gradient", {{"fallback", fallback}}, {x, dy}, {type_of(kF32, {n, k})}};
    expect_within(run_reference(gradient)[0], {columns_of_dy, n, t}, {columns_of_x, k, t});
    expect_reference_bits(gradient);
  }
}

TEST(Int8Products, OfADenseLayerHaveOneDefinition) {
  for (const auto& [t, n, k] : kSizes)
    for (const std::int64_t fallback : kFallbacks) {
      const Values x = with_outliers(drawn(kBf16, {t, k}, 5)), dy = drawn(kBf16, {t, n}, 6);
      const Values gate = packed(drawn(kF32, {n, k}, 7), false),
                   up = packed(drawn(kF32, {n, k}, 8), false);
      const Values gate_turned = packed(drawn(kF32, {n, k}, 7), true),
                   up_turned = packed(drawn(kF32, {n, k}, 8), true), bias = drawn(kF32, {n}, 9);
      const TensorType y = type_of(kBf16, {t, n}), dx = type_of(kBf16, {t, k}),
                       dw = type_of(kF32, {n, k});
      const spec::Attributes attributes{{"fallback", fallback}};
      expect_reference_bits({"linear", attributes, {x, gate, bias}, {y}});
      expect_reference_bits({"linear_many", attributes, {x, gate, up}, {y, y}});
      expect_reference_bits(
          {"linear_many_input_gradient", {}, {dy, gate_turned, dy, up_turned}, {dx}});
      const std::vector<Values> before{drawn(kF32, {n, k}, 10), drawn(kF32, {n, k}, 11)};
      for (const std::span<const Values> added : {std::span<const Values>(), std::span(before)}) {
        expect_reference_bits({"linear_weight_gradient", attributes, {x, dy}, {dw}},
                              added.first(added.empty() ? 0 : 1));
        expect_reference_bits({"linear_many_weight_gradient", attributes, {x, dy, dy}, {dw, dw}},
                              added);
      }
      TensorType panels = dw;
      panels.layout = panels_layout(false);
      spec::Attributes in_panels = attributes;
      in_panels["layout"] = std::string("panels");
      expect_reference_bits({"linear_weight_gradient", in_panels, {x, dy}, {panels}});
      expect_reference_bits({"linear_weight_gradient_squares",
                             attributes,
                             {x, dy},
                             {dw, type_of(DType::kFloat64, {})}});
    }
}

// Rows of experts: some have none, one has one.
const std::vector<double> kOffsets{0, 0, 1, 131, 131, 194};
constexpr std::int64_t kRows = 194, kExperts = 5, kTokens = 97, kTopK = 2;

std::vector<double> row_map() {
  std::vector<double> map;
  for (std::int64_t p = 0; p < kRows; ++p) map.push_back(static_cast<double>(p * 45 % kRows));
  return map;
}

TEST(Int8Products, OfExpertsHaveOneDefinition) {
  const std::int64_t n = 48, k = 160;
  for (const std::int64_t fallback : kFallbacks) {
    const Values rows = with_outliers(drawn(kBf16, {kRows, k}, 12)),
                 tokens = with_outliers(drawn(kBf16, {kTokens, k}, 13)),
                 dy = drawn(kBf16, {kRows, n}, 14), of_tokens = drawn(kBf16, {kTokens, n}, 15),
                 offsets = integers(kOffsets), map = integers(row_map()),
                 bias = drawn(kF32, {kExperts, n}, 16);
    const Values weight = drawn(kF32, {kExperts, n, k}, 17),
                 other = drawn(kF32, {kExperts, n, k}, 18);
    const Values w = packed(weight, false), turned = packed(weight, true),
                 up = packed(other, false), up_turned = packed(other, true);
    const TensorType y = type_of(kBf16, {kRows, n}), dx = type_of(kBf16, {kRows, k}),
                     dw = type_of(kF32, {kExperts, n, k});
    const spec::Attributes plain{{"fallback", fallback}};
    spec::Attributes gathered = plain, with_bias = plain;
    gathered["top_k"] = kTopK;
    with_bias["bias"] = true;
    expect_reference_bits({"grouped_linear", plain, {rows, w, offsets}, {y}});
    expect_reference_bits({"grouped_linear", with_bias, {rows, w, offsets, bias}, {y}});
    expect_reference_bits({"grouped_linear", gathered, {tokens, w, offsets, map}, {y}});
    expect_reference_bits({"grouped_linear_many", plain, {rows, w, up, offsets}, {y, y}});
    expect_reference_bits({"grouped_linear_input_gradient", {}, {dy, turned, offsets}, {dx}});
    expect_reference_bits(
        {"grouped_linear_many_input_gradient", {}, {dy, turned, dy, up_turned, offsets}, {dx}});
    expect_bits_in_slices({"grouped_linear_input_gradient", {}, {dy, turned, offsets}, {dx}},
                          {weight});
    expect_bits_in_slices(
        {"grouped_linear_many_input_gradient", {}, {dy, turned, dy, up_turned, offsets}, {dx}},
        {weight, other});
    const std::vector<Values> before{drawn(kF32, dw.shape, 19), drawn(kF32, dw.shape, 20)};
    for (const std::span<const Values> added : {std::span<const Values>(), std::span(before)}) {
      const std::span<const Values> first = added.first(added.empty() ? 0 : 1);
      expect_reference_bits({"grouped_linear_weight_gradient", plain, {rows, dy, offsets}, {dw}},
                            first);
      for (const char* which : {"x", "dy"}) {
        spec::Attributes attributes = gathered;
        attributes["gathered"] = std::string(which);
        const bool is_x = *which == 'x';
        expect_reference_bits({"grouped_linear_weight_gradient",
                               attributes,
                               {is_x ? tokens : rows, is_x ? dy : of_tokens, offsets, map},
                               {dw}},
                              first);
      }
      expect_reference_bits(
          {"grouped_linear_many_weight_gradient", plain, {rows, dy, dy, offsets}, {dw, dw}}, added);
    }
    expect_reference_bits({"grouped_linear_weight_gradient_squares",
                           plain,
                           {rows, dy, offsets},
                           {dw, type_of(DType::kFloat64, {})}});
  }
}

// Other rows compute activations in f32. What an op with an activation keeps of its products has
// the bits of the products alone.
TEST(Int8Products, WithAnActivationHaveTheBitsOfProductsAlone) {
  const std::int64_t t = 65, n = 144, k = 160;
  const Values x = with_outliers(drawn(kBf16, {t, k}, 21)),
               gate = packed(drawn(kF32, {n, k}, 22), false),
               up = packed(drawn(kF32, {n, k}, 23), false);
  const TensorType y = type_of(kBf16, {t, n});
  const spec::Attributes plain{{"fallback", std::int64_t{16}}};
  spec::Attributes attributes = plain;
  attributes["activation"] = std::string("swiglu");
  const std::vector<HostTensor> products =
      run_reference({"linear_many", plain, {x, gate, up}, {y, y}});
  const OpCall kept{"linear_activation_with_products", attributes, {x, gate, up}, {y, y, y}};
  const OpCall activation{"activation",
                          {{"activation", std::string("swiglu")}},
                          {products[0].values(), products[1].values()},
                          {y}};
  const HostTensor of_products = run_reference(activation)[0].clone();
  EXPECT_TRUE(run_reference(kept)[0].same_bits(of_products));
  EXPECT_TRUE(run_reference({"linear_activation", attributes, {x, gate, up}, {y}})[0].same_bits(
      of_products));
  for_rows(kept, [&](const kernels::Kernel& kernel) {
    const RunResult got = run_kernel(kernel, *ops::find_op(kept.op), kept, {.num_threads = 2});
    EXPECT_EQ(got.violation, "");
    EXPECT_EQ(compare_bits(got.outputs[1], products[0]).report, "");
    EXPECT_EQ(compare_bits(got.outputs[2], products[1]).report, "");
  });
  spec::Attributes quantising = attributes;
  quantising["block"] = std::int64_t{128};
  const TensorType codes = quantized(y, int8_format(128));
  const OpCall coded{"linear_activation_with_codes", quantising, {x, gate, up}, {y, codes, codes}};
  for_rows(coded, [&](const kernels::Kernel& kernel) {
    const RunResult got = run_kernel(kernel, *ops::find_op(coded.op), coded, {.num_threads = 2});
    EXPECT_EQ(got.violation, "");
    for (std::size_t i = 0; i < 2; ++i) {
      const OpCall quantize{
          "quantize", {{"block", std::int64_t{128}}}, {products[i].values()}, {codes}};
      EXPECT_EQ(compare_bits(got.outputs[1 + i], run_reference(quantize)[0]).report, "");
    }
  });
  // The gradient multiplies dy with the weight, rounds, and goes through the activation.
  const Values dy = drawn(kBf16, {t, k}, 24), down = packed(drawn(kF32, {k, n}, 25), true);
  const HostTensor dh =
      run_reference(
          {"linear_input_gradient", {{"output_dtype", std::string("bf16")}}, {dy, down}, {y}})[0]
          .clone();
  const auto want = run_reference({"activation_gradient",
                                   {{"activation", std::string("swiglu")}},
                                   {products[0].values(), products[1].values(), dh.values()},
                                   {y, y}});
  const auto got = run_reference({"linear_activation_gradient",
                                  {{"activation", std::string("swiglu")}},
                                  {dy, down, products[0].values(), products[1].values()},
                                  {y, y}});
  for (std::size_t o = 0; o < 2; ++o) EXPECT_TRUE(got[o].same_bits(want[o])) << o;
}

// Rows compute activations otherwise than each other, so each is compared with itself.
TEST(Int8Products, OfActivationsHaveTheirRowsBitsInSlices) {
  const std::int64_t n = 160, k = 144;
  const Values dy = drawn(kBf16, {kRows, n}, 31), of_tokens = drawn(kBf16, {kTokens, n}, 32),
               weight = drawn(kF32, {kExperts, n, k}, 33), down = packed(weight, true),
               offsets = integers(kOffsets), map = integers(row_map()),
               gate = drawn(kBf16, {kRows, k}, 34), up = drawn(kBf16, {kRows, k}, 35),
               weights = drawn(kF32, {kTokens, kTopK}, 36);
  const TensorType rows = type_of(kBf16, {kRows, k});
  const spec::Attributes swiglu{{"activation", std::string("swiglu")}};
  const OpCall calls[] = {
      {"grouped_linear_activation_gradient", swiglu, {dy, down, offsets, gate, up}, {rows, rows}},
      {"grouped_linear_activation_gradient_with_weights",
       swiglu,
       {of_tokens, down, offsets, gate, up, map, weights},
       {rows, rows, weights.type}}};
  for (const OpCall& whole : calls)
    for (const std::int64_t slices : kSlices)
      for_rows(in_slices(whole, {weight}, slices), [&](const kernels::Kernel& kernel) {
        const ir::OpSchema& schema = *ops::find_op(whole.op);
        const RunResult want = run_kernel(whole_row(kernel), schema, whole, {.num_threads = 1});
        for (const int threads : is_reference(kernel) ? std::vector{1} : std::vector{1, 2}) {
          const RunResult got = run_kernel(kernel, schema, in_slices(whole, {weight}, slices),
                                           {.num_threads = threads});
          EXPECT_EQ(got.violation, "");
          for (std::size_t o = 0; o < whole.outputs.size(); ++o)
            EXPECT_EQ(compare_bits(got.outputs[o], want.outputs[o], {"", true}).report, "") << o;
        }
      });
}

TEST(Int8Products, InSlicesTakeWeightsInRowsAlone) {
  const TensorType dy = type_of(kBf16, {8, 48}), rows = type_of(kF32, {3, 48, 40}),
                   offsets = type_of(kI32, {4});
  const auto infer = [&](const TensorType& rows_of_dy, const TensorType& weight,
                         const spec::Attributes& attributes) {
    return ops::find_op("grouped_linear_input_gradient")
        ->infer(std::vector{rows_of_dy, weight, offsets}, attributes);
  };
  const std::string format = to_string(int8_tile_format()), key(spec::kPackedFormat);
  const spec::Attributes cut{{"slices", std::int64_t{2}}, {key, format}};
  EXPECT_EQ(infer(dy, rows, cut), std::vector{type_of(kBf16, {8, 40})});
  EXPECT_THROW(infer(dy, rows, {{key, format}}), InvalidArgument);
  EXPECT_THROW(infer(dy, rows, {{"slices", std::int64_t{0}}, {key, format}}), InvalidArgument);
  EXPECT_THROW(infer(dy, rows, {{"slices", std::int64_t{2}}}), InvalidArgument);
  EXPECT_THROW(infer(dy, rows, {{"slices", std::int64_t{2}}, {key, std::string("i8_bf16_1x128")}}),
               InvalidArgument);
  EXPECT_THROW(infer(dy, rows, {{"slices", std::int64_t{2}}, {key, std::int64_t{128}}}),
               InvalidArgument);
  EXPECT_THROW(infer(dy, type_of(kBf16, {3, 48, 40}), cut), InvalidArgument);
  EXPECT_THROW(infer(dy, in_tiles(rows, true), cut), InvalidArgument);
  EXPECT_THROW(infer(type_of(kF32, {8, 48}), rows, cut), InvalidArgument);
}

TEST(Int8Products, SayWhatTheyAreByWeightAndFallbackTogether) {
  const TensorType x = type_of(kBf16, {8, 40}), w = in_tiles(type_of(kF32, {48, 40}), false),
                   dy = type_of(kBf16, {8, 48});
  const auto infer = [](const char* op, const std::vector<TensorType>& inputs,
                        const spec::Attributes& attributes) {
    return ops::find_op(op)->infer(inputs, attributes);
  };
  const auto with = [](std::int64_t fallback) { return spec::Attributes{{"fallback", fallback}}; };
  EXPECT_NO_THROW(infer("linear", {x, w}, with(64)));
  EXPECT_THROW(infer("linear", {x, w}, {}), InvalidArgument);
  EXPECT_THROW(infer("linear", {x, w}, with(-1)), InvalidArgument);
  EXPECT_THROW(infer("linear", {x, w}, with(129)), InvalidArgument);
  EXPECT_THROW(infer("linear", {x, type_of(kBf16, {48, 40})}, with(64)), InvalidArgument);
  EXPECT_THROW(infer("linear", {type_of(kF32, {8, 40}), w}, with(64)), InvalidArgument);
  EXPECT_THROW(infer("linear", {x, in_tiles(type_of(kF32, {48, 40}), true)}, with(64)),
               InvalidArgument);
  EXPECT_NO_THROW(infer("linear_weight_gradient", {x, dy}, with(0)));
  EXPECT_THROW(
      infer("linear_weight_gradient", {type_of(kF32, {8, 40}), type_of(kF32, {8, 48})}, with(0)),
      InvalidArgument);
}

// What is not finite shows: its block has scale NaN.
TEST(Int8Products, AreNanWhereAnOperandIsNotFinite) {
  Values x = drawn(kBf16, {4, 160}, 26), weight = drawn(kF32, {40, 160}, 27);
  x.data[1 * 160 + 3] = std::numeric_limits<double>::infinity();
  weight.data[0] = std::numeric_limits<double>::quiet_NaN();
  const auto product = [](const Values& a, const Values& w) {
    return run_reference({"linear",
                          {{"fallback", std::int64_t{64}}},
                          {a, packed(w, false)},
                          {type_of(kBf16, {4, 40})}})[0]
        .values()
        .data;
  };
  const std::vector<double> of_x = product(x, drawn(kF32, {40, 160}, 27)),
                            of_w = product(drawn(kBf16, {4, 160}, 26), weight);
  for (std::size_t i = 0; i < of_x.size(); ++i) {
    EXPECT_EQ(std::isnan(of_x[i]), i / 40 == 1) << i;
    EXPECT_TRUE(std::isnan(of_w[i])) << i;
  }
}

}  // namespace
}  // namespace anabatic::testing
