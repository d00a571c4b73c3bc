// SPDX-License-Identifier: Apache-2.0
// Calls that say the same in other words: every kernel gives them equal bits.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "ops/kernel_runner.h"
#include "ops/table.h"
#include "support/case_file.h"
#include "support/random_data.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

// For each row that accepts the whole call: what its variant computes, cut or not.
std::map<std::string, std::vector<Values>> by_variant(const OpCall& call) {
  std::map<std::string, std::vector<Values>> results;
  for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
    if (!supports(*kernel, call)) continue;
    std::string name(kernel->name);
    if (const std::size_t at = name.find("_slices"); at != std::string::npos) name.erase(at, 7);
    const RunResult result = run_kernel(*kernel, *ops::find_op(call.op), call, {.num_threads = 2});
    EXPECT_EQ(result.violation, "") << kernel->name;
    for (const HostTensor& output : result.outputs) results[name].push_back(output.values());
  }
  EXPECT_FALSE(results.empty()) << call.op;
  return results;
}

// Every case that is cut.
TEST(Slices, OfACallHaveTheBitsOfTheWhole) {
  int num_cases = 0;
  for (const char* op :
       {"head_loss_with_gradient", "attention_gradient", "grouped_linear_input_gradient",
        "grouped_linear_many_input_gradient", "grouped_linear_activation_gradient",
        "grouped_linear_activation_gradient_with_weights"}) {
    const CaseFile file =
        read_case_file(fmt::format("{}/tests/ops/cases/{}.txt", ANABATIC_SOURCE_DIR, op));
    for (const CaseLine& line : file.cases)
      for (const std::string& dtype : line.dtypes) {
        const OpCall cut = make_call(file, line, dtype, Regime::kBounded, 9);
        OpCall whole = cut;
        if (whole.attributes.erase("slices") == 0) continue;
        ++num_cases;
        for (Values& input : whole.inputs)
          if (input.type.layout == panels_layout(false)) input.type.layout = panels_layout(true);
        const auto want = by_variant(whole), got = by_variant(cut);
        ASSERT_EQ(want.size(), got.size()) << op;
        for (const auto& [variant, outputs] : want)
          for (std::size_t i = 0; i < outputs.size(); ++i)
            EXPECT_EQ(got.at(variant)[i].data, outputs[i].data)
                << variant << " line " << line.line << " output " << i;
      }
  }
  EXPECT_GE(num_cases, 20);
}

// Every case with a weight in int8 or MXFP4. Blocks of it are dequantised as those of others are
// packed.
TEST(QuantizedWeights, GiveTheBitsOfTheDequantizedOnes) {
  int num_int8 = 0, num_mxfp4 = 0;
  for (const char* op :
       {"linear", "linear_input_gradient", "linear_many", "linear_many_input_gradient",
        "linear_activation", "linear_activation_gradient", "grouped_linear",
        "grouped_linear_input_gradient", "grouped_linear_many",
        "grouped_linear_many_input_gradient", "grouped_linear_activation",
        "grouped_linear_activation_gradient"}) {
    const CaseFile file =
        read_case_file(fmt::format("{}/tests/ops/cases/{}.txt", ANABATIC_SOURCE_DIR, op));
    for (const CaseLine& line : file.cases) {
      const std::string& weight = line.inputs[1].type;
      const bool is_mxfp4 = weight.starts_with("e2m1_");
      if (!is_mxfp4 && !weight.starts_with("i8_")) continue;
      ++(is_mxfp4 ? num_mxfp4 : num_int8);
      const OpCall call = make_call(file, line, "bf16", Regime::kBounded, 9);
      const auto got = by_variant(call), want = by_variant(with_plain_weights(call));
      ASSERT_EQ(want.size(), got.size()) << op;
      for (const auto& [variant, outputs] : want)
        for (std::size_t i = 0; i < outputs.size(); ++i)
          EXPECT_EQ(got.at(variant)[i].data, outputs[i].data)
              << variant << " line " << line.line << " output " << i;
    }
  }
  EXPECT_GE(num_int8, 18);
  EXPECT_GE(num_mxfp4, 18);
}

// Weights of 0 and 1 against labels of -100: no other bit may differ.
TEST(RowWeights, OfZeroAndOneAreIgnoredLabels) {
  constexpr std::int64_t kRows = 150, kClasses = 70, kWidth = 40;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto draw = [&](const std::vector<std::int64_t>& shape, std::uint64_t stream) {
      return random_values(tensor_type(dtype, shape), Regime::kBounded, 5, stream);
    };
    const auto made = [](DType of, const std::vector<std::int64_t>& shape, double value) {
      const TensorType type = tensor_type(of, shape);
      return Values{type,
                    std::vector<double>(static_cast<std::size_t>(type.num_elements()), value)};
    };
    Values labels = made(DType::kInt32, {kRows}, 0);
    Values weights = made(DType::kFloat32, {kRows}, 1);
    Values masked = labels;
    for (std::size_t t = 0; t < labels.data.size(); ++t) {
      labels.data[t] = masked.data[t] = static_cast<double>(t * 31 % kClasses);
      if (t % 3 != 1) continue;
      weights.data[t] = 0;
      masked.data[t] = -100;
    }
    const Values scale = made(DType::kFloat32, {}, 0.01), x = draw({kRows, kWidth}, 1),
                 matrix = draw({kClasses, kWidth}, 2), logits = draw({kRows, kClasses}, 3),
                 lse = made(DType::kFloat32, {kRows}, 5);
    const TensorType loss = tensor_type(DType::kFloat32, {}),
                     gradient = tensor_type(DType::kFloat32, {kClasses, kWidth});
    std::vector<OpCall> calls{{"cross_entropy", {}, {logits, masked, scale}, {loss, lse.type}},
                              {"cross_entropy_gradient",
                               {{"dtype", std::string(to_string(dtype))}},
                               {logits, masked, scale, lse, scale},
                               {logits.type}},
                              {"head_loss", {}, {x, matrix, masked, scale}, {loss}},
                              {"head_loss_with_input_gradient",
                               {{"dloss", 1.0}},
                               {x, matrix, masked, scale},
                               {loss, x.type}},
                              {"head_loss_with_gradient",
                               {{"dloss", 1.0}},
                               {x, matrix, masked, scale},
                               {loss, x.type, gradient}}};
    for (const OpCall& of_labels : calls) {
      OpCall of_weights = of_labels;
      for (Values& input : of_weights.inputs)
        if (input.type == labels.type) input = labels;
      of_weights.inputs.push_back(weights);
      const auto want = by_variant(of_labels), got = by_variant(of_weights);
      ASSERT_EQ(want.size(), got.size()) << of_labels.op;
      for (const auto& [variant, outputs] : want)
        for (std::size_t i = 0; i < outputs.size(); ++i)
          EXPECT_EQ(got.at(variant)[i].data, outputs[i].data) << variant << " output " << i;
    }
  }
}

}  // namespace
}  // namespace anabatic::testing
