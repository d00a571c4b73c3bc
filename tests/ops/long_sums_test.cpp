// SPDX-License-Identifier: Apache-2.0
// Sums of one sign over long dimensions, within the bounds of blocked sums, which one chain over
// the whole dimension exceeds (docs/internals/numerics.md).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/philox.h"
#include "ops/kernel_runner.h"
#include "ops/table.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr auto kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kI32 = DType::kInt32;

using Shape = std::initializer_list<std::int64_t>;

// All alike; in [0.5, 1.5); normal deviates around 0.26, as a column of a head may have them.
enum class Terms { kSteady, kUniform, kMean };

struct Case {
  const char* op;
  Terms terms;
  DType dtype;
  std::int64_t depth;
};

// Both factors of a term that is the same everywhere and lies halfway between two floats of the
// size that the sum has at last, so that a chain rounds every addition to one side.
struct Steady {
  double left, right;
};
Steady steady(std::int64_t depth) {
  if (depth < 10000) return {1 + 1.0 / 128, 1 + 2.0 / 128};
  if (depth < 100000) return {1 + 4.0 / 128, 1 + 8.0 / 128};
  return {1, 1 + 1.0 / 128};
}

// Values of a case, and zeroes and the like.
struct Make {
  const Case& c;

  static Values all(DType dtype, Shape shape, double value) {
    Values values{.type = tensor_type(dtype, shape)};
    values.data.assign(static_cast<std::size_t>(values.type.num_elements()), value);
    return values;
  }
  // Like [1, 0, 0, ...] in each row.
  static Values first_column(DType dtype, std::int64_t rows, std::int64_t width, double value) {
    Values values = all(dtype, {rows, width}, 0);
    for (std::size_t i = 0; i < values.data.size(); i += static_cast<std::size_t>(width))
      values.data[i] = value;
    return values;
  }
  // The left or the right factor of terms.
  Values factor(bool is_left, Shape shape) const {
    if (c.terms == Terms::kSteady)
      return all(c.dtype, shape, is_left ? steady(c.depth).left : steady(c.depth).right);
    Values values = random_values(tensor_type(c.dtype, shape), Regime::kBounded, 7, is_left);
    for (std::size_t i = 0; i < values.data.size(); ++i) {
      double& value = values.data[i];
      value = c.terms == Terms::kMean
                  ? value + 0.26
                  : 0.5 + static_cast<double>(random_below(7, 2 + is_left, i, 128)) / 128;
      value = c.dtype == kBf16 ? double{to_float(to_bfloat16(static_cast<float>(value)))}
                               : double{static_cast<float>(value)};
    }
    return values;
  }
  // Both factors at once, where they are one operand.
  Values term(Shape shape) const {
    Values values = factor(true, shape);
    if (c.terms == Terms::kSteady && c.dtype == kF32)
      for (double& value : values.data) value *= steady(c.depth).right;
    return values;
  }
  Values left(Shape shape) const { return factor(true, shape); }
  Values right(Shape shape) const { return factor(false, shape); }
};

OpCall product(const Case& c, const Make& make) {
  const std::int64_t n = c.depth;
  const std::string_view op = c.op;
  if (op == "linear")
    return {op, {}, {make.left({2, n}), make.right({5, n})}, {tensor_type(c.dtype, {2, 5})}};
  if (op == "linear_input_gradient")
    return {op,
            {{"output_dtype", std::string(c.dtype == kF32 ? "f32" : "bf16")}},
            {make.left({2, n}), make.right({n, 5})},
            {tensor_type(c.dtype, {2, 5})}};
  if (op == "linear_many_input_gradient")
    return {op,
            {},
            {make.left({2, n / 2}), make.right({n / 2, 5}), make.left({2, n / 2}),
             make.right({n / 2, 5})},
            {tensor_type(c.dtype, {2, 5})}};
  if (op == "grouped_linear_weight_gradient") {
    Values offsets = Make::all(kI32, {3}, 0);
    offsets.data[2] = static_cast<double>(n);
    return {
        op, {}, {make.left({n, 3}), make.right({n, 5}), offsets}, {tensor_type(kF32, {2, 5, 3})}};
  }
  return {op, {}, {make.left({n, 3}), make.right({n, 5})}, {tensor_type(kF32, {5, 3})}};
}

// Equal logits, so that each class has the same exponential; f · x is exact for eight classes. The
// label's weights are zero, so that no term cancels others.
OpCall head_loss(const Case& c, const Make& make) {
  const bool over_rows = std::string_view(c.op) == "head_loss_with_gradient rows";
  const std::int64_t rows = over_rows ? c.depth : 3, classes = over_rows ? 8 : c.depth, width = 2;
  Values weight = over_rows ? Make::all(c.dtype, {classes, width}, 0) : make.term({classes, width});
  std::fill_n(weight.data.begin() + width, width, 0.0);
  return {"head_loss_with_gradient",
          {{"dloss", 1.0}},
          {over_rows ? make.term({rows, width}) : Make::all(c.dtype, {rows, width}, 0), weight,
           Make::all(kI32, {rows}, 1), Make::all(kF32, {}, 1)},
          {tensor_type(kF32, {}), tensor_type(c.dtype, {rows, width}),
           tensor_type(kF32, {classes, width})}};
}

// Scores of zero. Forward and "keys": one row that sees all keys; "rows": all rows see one key.
OpCall attention(const Case& c, const Make& make) {
  const std::string_view op = c.op;
  const std::int64_t width = 2, rows = op == "attention_gradient rows" ? c.depth : 1,
                     keys = op == "attention_gradient rows" ? 1 : c.depth;
  const auto type = [&](std::int64_t count) { return tensor_type(c.dtype, {count, width}); };
  const auto zeroes = [&](std::int64_t count) { return Make::all(c.dtype, {count, width}, 0); };
  const spec::Attributes attributes{{"num_heads", std::int64_t{1}},
                                    {"num_kv_heads", std::int64_t{1}},
                                    {"scale", 1.0},
                                    {"window", std::int64_t{0}}};
  const Values begins = Make::all(kI32, {rows}, 0),
               ends = Make::all(kI32, {rows}, static_cast<double>(keys)),
               lse = Make::all(kF32, {rows, 1}, 0);
  if (op == "attention")
    return {op,
            attributes,
            {zeroes(1), zeroes(keys), make.term({keys, width}), begins, ends},
            {type(1), lse.type}};
  const bool over_rows = rows > 1;
  return {"attention_gradient",
          attributes,
          {over_rows ? make.right({rows, width}) : zeroes(1),
           over_rows ? zeroes(1) : make.term({keys, width}),
           Make::first_column(c.dtype, keys, width, 1), begins, ends, zeroes(rows), lse,
           over_rows ? make.left({rows, width}) : Make::first_column(c.dtype, 1, width, 1)},
          {type(rows), type(keys), type(keys)}};
}

OpCall of_rows(const Case& c, const Make& make) {
  const std::int64_t n = c.depth;
  const std::string_view op = c.op;
  const spec::Attributes epsilon{{"epsilon", 0.0}};
  if (op == "sum_rows") return {op, {}, {make.term({n, 3})}, {tensor_type(kF32, {3})}};
  if (op == "sinks_gradient") {  // probabilities of 1
    Values delta = make.term({n, 3});
    delta.type.dtype = kF32;
    return {op,
            {},
            {delta, Make::all(kF32, {n, 3}, 0), Make::all(kF32, {3}, 0)},
            {tensor_type(kF32, {3})}};
  }
  if (op == "sum_rows of groups") {
    Values offsets = Make::all(kI32, {3}, 0);
    offsets.data[2] = static_cast<double>(n);
    return {"sum_rows", {}, {make.term({n, 3}), offsets}, {tensor_type(kF32, {2, 3})}};
  }
  if (op == "expert_bias_weight_gradient")
    return {op,
            {{"num_experts", std::int64_t{2}}},
            {make.term({n, 3}), Make::all(kF32, {n, 1}, 1), Make::all(kI32, {n, 1}, 1)},
            {tensor_type(kF32, {2, 3})}};
  if (op == "expert_bias_router_gradient") {
    Values bias = make.right({1, n});
    bias.type.dtype = kF32;
    return {
        op, {}, {make.left({2, n}), bias, Make::all(kI32, {2, 1}, 0)}, {tensor_type(kF32, {2, 1})}};
  }
  if (op == "sum_squares") return {op, {}, {make.left({n})}, {tensor_type(DType::kFloat64, {})}};
  if (op == "embedding_weight_gradient")
    return {op,
            {{"rows", std::int64_t{2}}},
            {Make::all(kI32, {n}, 1), make.term({n, 3})},
            {tensor_type(kF32, {2, 3})}};
  if (op == "rms_norm_weight_gradient")
    return {op,
            {{"epsilon", 0.0}, {"width", std::int64_t{4}}},
            {Make::all(c.dtype, {n, 4}, 1), make.term({n, 4})},
            {tensor_type(kF32, {4})}};
  if (op == "layer_norm_weight_gradient") {
    Values x = Make::all(c.dtype, {n, 4}, 1);
    for (std::size_t i = 0; i < x.data.size(); i += 2) x.data[i] = -1;
    return {op, epsilon, {x, make.term({n, 4})}, {tensor_type(kF32, {4}), tensor_type(kF32, {4})}};
  }
  Values weight = make.right({n});
  weight.type.dtype = kF32;
  if (op.starts_with("layer_norm")) {
    // Both signs, so that a row has a variance.
    Values x = make.left({2, n});
    for (std::size_t i = 0; i < x.data.size(); i += 2) x.data[i] *= -1;
    const std::vector<Values> more =
        op == "layer_norm" ? std::vector{weight, weight} : std::vector{weight, make.left({2, n})};
    return {op, epsilon, {x, more[0], more[1]}, {x.type}};
  }
  if (op == "rms_norm")
    return {op, epsilon, {make.left({2, n}), weight}, {tensor_type(c.dtype, {2, n})}};
  if (op == "rms_norm_input_gradient")
    return {op,
            epsilon,
            {make.left({2, n}), weight, make.left({2, n})},
            {tensor_type(c.dtype, {2, n})}};
  if (op == "unpermute_gradient") {
    Values slots = Make::all(kI32, {2}, 0);
    slots.data[1] = 1;
    return {op,
            {},
            {make.left({2, n}), make.right({2, n}), Make::all(kF32, {2, 1}, 1), slots},
            {tensor_type(c.dtype, {2, n}), tensor_type(kF32, {2, 1})}};
  }
  Values logits = make.left({2, n});
  for (double& value : logits.data) value /= 2;
  return {op,
          {},
          {logits, Make::all(kI32, {2}, 1), Make::all(kF32, {}, 1)},
          {tensor_type(kF32, {}), tensor_type(kF32, {2})}};
}

OpCall call_of(const Case& c) {
  const Make make{c};
  const std::string_view op = c.op;
  if (op.find("linear") != op.npos) return product(c, make);
  if (op.starts_with("head_loss")) return head_loss(c, make);
  if (op.starts_with("attention")) return attention(c, make);
  return of_rows(c, make);
}

class LongSums : public ::testing::TestWithParam<const char*> {};

TEST_P(LongSums, StayWithinTheBoundsOfBlocks) {
  int num_runs = 0;
  for (const std::int64_t depth : {512, 4096, 49152, 200000})
    for (const DType dtype : {kF32, kBf16})
      for (const Terms terms : {Terms::kSteady, Terms::kUniform, Terms::kMean}) {
        // Results in bf16 show little of a long sum.
        if (depth == 200000 ? terms != Terms::kSteady || dtype == kBf16
                            : terms != Terms::kSteady && depth != 4096)
          continue;
        const OpCall call = call_of({GetParam(), terms, dtype, depth});
        const std::vector<Values> wants = run_in_double(call);
        for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
          if (!kernel->name.starts_with("cpu") || !is_under_test(kernel->name) ||
              !supports(*kernel, call))
            continue;
          ++num_runs;
          const auto tolerances = output_tolerances(call, wants, {}, kernel->name);
          const RunResult got =
              run_kernel(*kernel, *ops::find_op(call.op), call, {.num_threads = 2});
          EXPECT_EQ(got.violation, "");
          for (std::size_t o = 0; o < wants.size(); ++o) {
            Values want = wants[o];
            want.type = call.outputs[o];
            EXPECT_EQ(compare(got.outputs[o].values(), want, tolerances[o],
                              {fmt::format("{}, {} terms", kernel->name, depth), true})
                          .report,
                      "")
                << "output " << o << ", terms of kind " << static_cast<int>(terms);
          }
        }
      }
  EXPECT_GT(num_runs, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Of, LongSums,
    ::testing::Values("linear", "linear_input_gradient", "linear_many_input_gradient",
                      "linear_weight_gradient", "grouped_linear_weight_gradient",
                      "head_loss_with_gradient classes", "head_loss_with_gradient rows",
                      "attention", "attention_gradient keys", "attention_gradient rows",
                      "embedding_weight_gradient", "expert_bias_router_gradient",
                      "expert_bias_weight_gradient", "sinks_gradient", "sum_rows",
                      "sum_rows of groups", "sum_squares", "layer_norm",
                      "layer_norm_input_gradient", "layer_norm_weight_gradient", "rms_norm",
                      "rms_norm_input_gradient", "rms_norm_weight_gradient", "unpermute_gradient",
                      "cross_entropy"),
    [](const auto& param_info) {
      std::string name(param_info.param);
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

}  // namespace
}  // namespace anabatic::testing
