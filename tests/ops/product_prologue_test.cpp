// SPDX-License-Identifier: Apache-2.0
// Products that apply a norm to x, or dropout, have the bits of these, stored, and then the
// product: in every row, of every form of a dense product.
#include "spec/product_prologue.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/kernel.h"
#include "ops/kernel_runner.h"
#include "ops/pack.h"
#include "ops/table.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

constexpr double kEpsilon = 1e-5;

struct Sizes {
  std::int64_t rows, in, out;
};

Values draw(const TensorType& type, std::uint64_t stream) {
  return random_values(type, Regime::kBounded, 3, stream);
}

TensorType in_panels(TensorType type) {
  type.layout = panels_layout(false);
  return type;
}

// The forms of a product of these sizes, each without the norm.
std::vector<OpCall> products(const Sizes& s, DType dtype) {
  const Values x = draw(tensor_type(dtype, {s.rows, s.in}), 1),
               dy = draw(tensor_type(dtype, {s.rows, s.out}), 2),
               w = draw(tensor_type(dtype, {s.out, s.in}), 3),
               v = draw(tensor_type(dtype, {s.out, s.in}), 4),
               bias = draw(tensor_type(DType::kFloat32, {s.out}), 5);
  const Values packed = draw(in_panels(w.type), 3), second = draw(in_panels(w.type), 4);
  const TensorType y = dy.type, gradient = tensor_type(DType::kFloat32, {s.out, s.in}),
                   square = tensor_type(DType::kFloat64, {});
  const std::string swiglu = "swiglu", panels = "panels";
  std::vector<OpCall> calls{
      {"linear", {}, {x, w}, {y}},
      {"linear", {}, {x, packed, bias}, {y}},
      {"linear",
       {{"output_dtype", std::string("f32")}},
       {x, packed},
       {tensor_type(DType::kFloat32, {s.rows, s.out})}},
      {"linear_many", {}, {x, packed, second}, {y, y}},
      {"linear_activation", {{"activation", swiglu}}, {x, packed, second}, {y}},
      {"linear_activation_with_products", {{"activation", swiglu}}, {x, w, v}, {y, y, y}},
      {"linear_weight_gradient", {}, {x, dy}, {gradient}},
      {"linear_weight_gradient", {{"layout", panels}}, {x, dy}, {in_panels(gradient)}},
      {"linear_weight_gradient_squares",
       {{"layout", panels}},
       {x, dy},
       {in_panels(gradient), square}},
      {"linear_many_weight_gradient", {}, {x, dy, dy}, {gradient, gradient}}};
  if (dtype == DType::kBFloat16) {
    TensorType codes = tensor_type(DType::kInt8, {s.rows, s.out});
    codes.blocks = int8_format(16);
    calls.push_back({"linear_activation_with_codes",
                     {{"activation", swiglu}, {"block", std::int64_t{16}}},
                     {x, packed, second},
                     {y, codes, codes}});
  }
  return calls;
}

// Those of int8 products. Some blocks of x fall back.
std::vector<OpCall> int8_products(const Sizes& s) {
  const DType bf16 = DType::kBFloat16;
  Values x = draw(tensor_type(bf16, {s.rows, s.in}), 1);
  const auto width = static_cast<std::size_t>(s.in);
  for (std::size_t row = 0; row * width < x.data.size(); row += 3)
    x.data[row * width + row % width] *= 512;
  const Values dy = draw(tensor_type(bf16, {s.rows, s.out}), 2);
  const auto packed = [&](std::uint64_t stream) {
    TensorType type = quantized(tensor_type(DType::kFloat32, {s.out, s.in}), int8_tile_format());
    type.layout = panels_layout(false);
    return run_reference({"pack",
                          ops::packing_attributes(type),
                          {draw(tensor_type(DType::kFloat32, {s.out, s.in}), stream)},
                          {type}})[0]
        .values();
  };
  const Values gate = packed(3), up = packed(4);
  TensorType codes = tensor_type(DType::kInt8, {s.rows, s.out});
  codes.blocks = int8_format(16);
  const TensorType y = dy.type, gradient = tensor_type(DType::kFloat32, {s.out, s.in});
  const std::string swiglu = "swiglu";
  std::vector<OpCall> calls;
  for (const std::int64_t fallback : {64, 0})
    for (OpCall call : std::vector<OpCall>{
             {"linear", {}, {x, gate}, {y}},
             {"linear_many", {}, {x, gate, up}, {y, y}},
             {"linear_activation", {{"activation", swiglu}}, {x, gate, up}, {y}},
             {"linear_activation_with_products",
              {{"activation", swiglu}},
              {x, gate, up},
              {y, y, y}},
             {"linear_activation_with_codes",
              {{"activation", swiglu}, {"block", std::int64_t{16}}},
              {x, gate, up},
              {y, codes, codes}},
             {"linear_weight_gradient", {}, {x, dy}, {gradient}},
             {"linear_weight_gradient",
              {{"layout", std::string("panels")}},
              {x, dy},
              {in_panels(gradient)}},
             {"linear_weight_gradient_squares",
              {},
              {x, dy},
              {gradient, tensor_type(DType::kFloat64, {})}},
             {"linear_many_weight_gradient", {}, {x, dy, dy}, {gradient, gradient}}}) {
      call.attributes["fallback"] = fallback;
      calls.push_back(std::move(call));
    }
  return calls;
}

// The row of `op` with the vectors of this row of a product.
const kernels::Kernel& row_beside(std::string_view product, std::string_view op) {
  std::string name = fmt::format("{}:{}", product.substr(0, product.find(':')), op);
  for (const char* isa : {"avx512", "avx2"})
    if (product.find(isa) != product.npos) name += fmt::format("_{}", isa);
  if (product.find("amx") != product.npos) name += "_avx512";
  if (product.find("avx_vnni") != product.npos) name += "_avx2";
  for (const kernels::Kernel* kernel : kernels::candidates(op))
    if (kernel->name == name) return *kernel;
  throw InternalError(fmt::format("no row {}", name));
}

std::vector<Values> run(const kernels::Kernel& kernel, const OpCall& call, int num_threads,
                        std::span<const Values> before = {}) {
  const RunResult result = run_kernel(kernel, *ops::find_op(call.op), call,
                                      {.num_threads = num_threads, .before = before});
  EXPECT_EQ(result.violation, "") << kernel.name;
  std::vector<Values> values;
  for (const HostTensor& output : result.outputs) values.push_back(output.values());
  return values;
}

struct Prologue {
  std::string norm;  // empty: none
  std::string op;
  std::vector<Values> parameters;
  bool drops = false;
};

std::vector<Prologue> norms(std::int64_t width) {
  const TensorType type = tensor_type(DType::kFloat32, {width});
  const Values weight = draw(type, 7), bias = draw(type, 8);
  return {{"rms", "rms_norm", {weight}}, {"layer", "layer_norm", {weight, bias}}};
}

// Those with dropout.
std::vector<Prologue> dropouts(std::int64_t width) {
  std::vector<Prologue> result = norms(width);
  result.push_back({});
  for (Prologue& prologue : result) prologue.drops = true;
  return result;
}
// Int8 products do not drop, nor those of an activation.
bool may_drop(const OpCall& product) { return product.op.find("activation") == std::string::npos; }

constexpr double kRate = 0.3;
const std::string kSite = "layers.3.q.lora_dropout";

Values draws(std::int64_t first_row) {
  const spec::DropoutDraws words = spec::dropout_draws(7, 5, first_row);
  return {tensor_type(DType::kInt32, {spec::kNumDropoutDraws}), {words.begin(), words.end()}};
}

// The product with dropout of x.
OpCall with_dropout(OpCall product, const Values& of_draws, const std::string& site = kSite,
                    double rate = kRate) {
  product.attributes[std::string(spec::kDropoutRate)] = rate;
  product.attributes[std::string(spec::kDropoutSite)] = site;
  product.inputs.push_back(of_draws);
  return product;
}

// NaNs are equal, whichever they are.
void expect_equal(const std::vector<Values>& got, const std::vector<Values>& want,
                  const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (std::size_t o = 0; o < want.size(); ++o) {
    ASSERT_EQ(got[o].data.size(), want[o].data.size()) << where;
    for (std::size_t i = 0; i < want[o].data.size(); ++i) {
      const double a = got[o].data[i], b = want[o].data[i];
      ASSERT_TRUE(a == b || (a != a && b != b))
          << where << " output " << o << " element " << i << ": " << a << " and " << b;
    }
  }
}

// Both ways of one product; gives the number of rows that ran.
int compare(const OpCall& product, const Prologue& prologue, int num_threads) {
  int num_rows = 0;
  const Values& x = product.inputs[0];
  const spec::Attributes epsilon{{"epsilon", kEpsilon}};
  const bool has_norm = !prologue.norm.empty();
  OpCall fused = product, of_norm{prologue.op, epsilon, {x}, {x.type}}, statistics;
  of_norm.inputs.insert(of_norm.inputs.end(), prologue.parameters.begin(),
                        prologue.parameters.end());
  if (has_norm) {
    fused.attributes["norm"] = prologue.norm;
    const std::int64_t count = spec::num_statistics(spec::norm_of(fused.attributes));
    statistics = {
        "norm_statistics", epsilon, {x}, {tensor_type(DType::kFloat32, {x.type.dim(0), count})}};
    statistics.attributes["norm"] = prologue.norm;
    fused.inputs.push_back({statistics.outputs[0], {}});
    fused.inputs.insert(fused.inputs.end(), prologue.parameters.begin(), prologue.parameters.end());
  }
  OpCall dropout{"dropout", {{"rate", kRate}, {"site", kSite}}, {x, draws(900)}, {x.type}};
  if (prologue.drops) fused = with_dropout(std::move(fused), dropout.inputs[1]);
  const bool adds = ops::find_op(product.op)->can_accumulate;
  std::vector<Values> before;
  for (std::size_t o = 0; adds && o < product.outputs.size(); ++o)
    before.push_back(draw(product.outputs[o], 20 + o));
  for (const kernels::Kernel* row : kernels::candidates(product.op)) {
    if (!is_under_test(row->name) || !supports(*row, product)) continue;
    if (is_reference(*row) && x.type.num_elements() > 2000) continue;  // slow
    const std::string where =
        fmt::format("{} {}{} rows {} x {} threads {}", row->name, prologue.norm,
                    prologue.drops ? " dropout" : "", x.type.dim(0), x.type.dim(1), num_threads);
    OpCall apart = product;
    if (has_norm) {
      fused.inputs[product.inputs.size()] =
          run(row_beside(row->name, "norm_statistics"), statistics, 1)[0];
      apart.inputs[0] = run(row_beside(row->name, prologue.op), of_norm, 1)[0];
    }
    if (prologue.drops) {
      dropout.inputs[0] = apart.inputs[0];
      apart.inputs[0] = run(row_beside(row->name, "dropout"), dropout, 1)[0];
    }
    EXPECT_TRUE(supports(*row, fused)) << where;
    expect_equal(run(*row, fused, num_threads), run(*row, apart, num_threads), where);
    if (adds)
      expect_equal(run(*row, fused, num_threads, before), run(*row, apart, num_threads, before),
                   where + " added");
    ++num_rows;
  }
  return num_rows;
}

TEST(ProductNorm, HasTheBitsOfTheNormAndThenTheProduct) {
  // Tails of vectors, tiles, parts and blocks; an odd depth; several blocks of the depth.
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{7, 13, 5}, Sizes{33, 31, 17}, Sizes{131, 67, 48},
                             Sizes{530, 200, 24}, Sizes{5, 1100, 40}})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const OpCall& product : products(sizes, dtype))
        for (const Prologue& norm : norms(sizes.in)) EXPECT_GT(compare(product, norm, 2), 0);
}

// A row that is not finite, weights of the norm among them, and rows of zeroes.
TEST(ProductNorm, KeepsNaNsAndZeroes) {
  const Sizes sizes{40, 70, 33};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (OpCall product : products(sizes, dtype)) {
      // What pads panels is no zero next to a NaN; int8 values have none.
      if (product.outputs[0].layout != kRowMajor || product.op == "linear_activation_with_codes")
        continue;
      std::vector<double>& x = product.inputs[0].data;
      x[3 * 70 + 5] = std::numeric_limits<double>::quiet_NaN();
      x[9 * 70 + 69] = std::numeric_limits<double>::infinity();
      for (std::size_t k = 0; k < 70; ++k) x[20 * 70 + k] = 0;
      for (Prologue norm : norms(sizes.in)) {
        norm.parameters[0].data[11] = std::numeric_limits<double>::quiet_NaN();
        EXPECT_GT(compare(product, norm, 1), 0);
      }
    }
}

// Tails of blocks and units, of rows and of the depth.
TEST(ProductNorm, IsQuantisedAsItWouldHaveBeenStored) {
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{7, 13, 5}, Sizes{131, 67, 48},
                             Sizes{130, 200, 24}, Sizes{5, 300, 40}})
    for (const OpCall& product : int8_products(sizes))
      for (const Prologue& norm : norms(sizes.in)) EXPECT_GT(compare(product, norm, 2), 0);
}

// A block with an element that is not finite has int8 values of 0 and a scale of NaN.
TEST(ProductNorm, OfRowsThatAreNotFiniteIsNaNInInt8) {
  for (OpCall product : int8_products({40, 70, 33})) {
    // What pads panels is no zero next to a NaN; int8 results have none.
    if (product.outputs[0].layout != kRowMajor || product.op == "linear_activation_with_codes")
      continue;
    std::vector<double>& x = product.inputs[0].data;
    x[3 * 70 + 5] = std::numeric_limits<double>::quiet_NaN();
    x[9 * 70 + 69] = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < 70; ++k) x[20 * 70 + k] = 0;
    for (Prologue norm : norms(70)) {
      EXPECT_GT(compare(product, norm, 1), 0);
      norm.parameters[0].data[11] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_GT(compare(product, norm, 1), 0);
    }
  }
}

TEST(ProductNorm, DoesNotDependOnThreadsInInt8) {
  for (const OpCall& product : int8_products({210, 48, 66}))
    for (const Prologue& norm : norms(48))
      for (const int threads : {1, 3}) EXPECT_GE(compare(product, norm, threads), 2);
}

TEST(ProductNorm, DoesNotDependOnThreads) {
  const Sizes sizes{210, 48, 66};
  for (const OpCall& product : products(sizes, DType::kBFloat16))
    for (const Prologue& norm : norms(sizes.in))
      for (const int threads : {1, 3}) EXPECT_GE(compare(product, norm, threads), 2);
}

// A fault that the comparison must find: statistics of another row.
TEST(ProductNorm, FindsStatisticsOfAnotherRow) {
  const Sizes sizes{9, 40, 16};
  const OpCall product = products(sizes, DType::kFloat32)[0];
  const Prologue norm = norms(sizes.in)[0];
  OpCall fused = product;
  fused.attributes["norm"] = norm.norm;
  Values statistics = draw(tensor_type(DType::kFloat32, {sizes.rows, 1}), 9);
  fused.inputs.push_back(statistics);
  fused.inputs.push_back(norm.parameters[0]);
  for (const kernels::Kernel* row : kernels::candidates(product.op)) {
    if (!is_under_test(row->name) || !supports(*row, fused)) continue;
    fused.inputs[2] = statistics;
    const std::vector<Values> want = run(*row, fused, 2);
    std::swap(fused.inputs[2].data[4], fused.inputs[2].data[5]);
    const std::vector<Values> got = run(*row, fused, 2);
    for (std::size_t i = 0; i < want[0].data.size(); ++i) {
      const auto line = i / static_cast<std::size_t>(sizes.out);
      EXPECT_EQ(got[0].data[i] == want[0].data[i], line != 4 && line != 5) << row->name << " " << i;
    }
  }
}

// Tails of blocks of 128 columns, several of them, tails of vectors, an odd depth. Results of 16
// columns are those of adapters.
TEST(ProductDropout, HasTheBitsOfDropoutAndThenTheProduct) {
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{7, 13, 5}, Sizes{33, 131, 16},
                             Sizes{131, 300, 16}, Sizes{530, 200, 24}, Sizes{5, 1100, 40}})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const OpCall& product : products(sizes, dtype)) {
        if (!may_drop(product)) continue;
        for (const Prologue& prologue : dropouts(sizes.in))
          EXPECT_GT(compare(product, prologue, 2), 0);
      }
}

TEST(ProductDropout, DoesNotDependOnThreads) {
  const Sizes sizes{210, 390, 18};
  Prologue dropout;
  dropout.drops = true;
  for (const OpCall& product : products(sizes, DType::kBFloat16)) {
    if (!may_drop(product)) continue;
    for (const int threads : {1, 3}) EXPECT_GE(compare(product, dropout, threads), 2);
  }
}

// What is dropped is 0, whatever it was.
TEST(ProductDropout, KeepsNaNsAsDropoutDoes) {
  const Sizes sizes{40, 70, 33};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (OpCall product : products(sizes, dtype)) {
      if (!may_drop(product) || product.outputs[0].layout != kRowMajor) continue;
      std::vector<double>& x = product.inputs[0].data;
      for (std::size_t k = 0; k < 4; ++k) x[3 * 70 + k] = std::numeric_limits<double>::quiet_NaN();
      x[9 * 70 + 69] = std::numeric_limits<double>::infinity();
      for (const Prologue& prologue : dropouts(sizes.in))
        EXPECT_GT(compare(product, prologue, 1), 0);
    }
}

// Faults that the comparison must find: draws of another place in the step, or of another site.
TEST(ProductDropout, FindsOtherDraws) {
  const Sizes sizes{9, 40, 16};
  for (const OpCall& product : products(sizes, DType::kFloat32)) {
    if (!may_drop(product)) continue;
    const OpCall fused = with_dropout(product, draws(0)), later = with_dropout(product, draws(1)),
                 elsewhere = with_dropout(product, draws(0), "other");
    for (const kernels::Kernel* row : kernels::candidates(product.op)) {
      if (!is_under_test(row->name) || !supports(*row, fused)) continue;
      const std::vector<Values> want = run(*row, fused, 2);
      EXPECT_NE(run(*row, later, 2)[0].data, want[0].data) << row->name;
      EXPECT_NE(run(*row, elsewhere, 2)[0].data, want[0].data) << row->name;
    }
  }
}

// An int8 product quantises its rows as they are.
TEST(ProductDropout, IsRefusedByInt8Products) {
  for (const OpCall& product : int8_products({8, 40, 16})) {
    if (!may_drop(product)) continue;
    const OpCall fused = with_dropout(product, draws(0));
    for (const kernels::Kernel* row : kernels::candidates(product.op)) {
      if (is_reference(*row)) continue;
      EXPECT_FALSE(supports(*row, fused)) << row->name;
    }
  }
}

TEST(ProductDropout, RefusesWhatIsNoDropout) {
  const OpCall product = products({8, 40, 16}, DType::kFloat32)[0];
  const auto error_of = [&](const OpCall& fused) {
    std::vector<TensorType> types;
    for (const Values& input : fused.inputs) types.push_back(input.type);
    try {
      ops::find_op(fused.op)->infer(types, fused.attributes);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_of(with_dropout(product, draws(0))), "");
  for (const double rate : {0.0, 1.0})
    EXPECT_THAT(error_of(with_dropout(product, draws(0), kSite, rate)),
                ::testing::HasSubstr("expected 'dropout_rate'"));
  Values two = draws(0);
  two.type.shape = {2};
  EXPECT_THAT(error_of(with_dropout(product, two)), ::testing::HasSubstr("draws"));
  for (const std::string_view missing : {spec::kDropoutRate, spec::kDropoutSite}) {
    OpCall fused = with_dropout(product, draws(0));
    fused.attributes.erase(std::string(missing));
    EXPECT_THAT(error_of(fused), ::testing::HasSubstr(fmt::format("'{}'", missing)));
  }
}

}  // namespace
}  // namespace anabatic::testing
