// SPDX-License-Identifier: Apache-2.0
// What must hold whatever the data, for every kernel row of the ops involved.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/philox.h"
#include "ops/kernel_runner.h"
#include "ops/run_all.h"
#include "ops/table.h"
#include "spec/rope.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/tolerance.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

constexpr auto kF32 = DType::kFloat32;
constexpr auto kI32 = DType::kInt32;

Values random(std::initializer_list<std::int64_t> shape, std::uint64_t stream) {
  return random_values(tensor_type(kF32, shape), Regime::kBounded, 5, stream);
}

Values constant(std::initializer_list<std::int64_t> shape, double value) {
  Values values{.type = tensor_type(kF32, shape)};
  values.data.assign(static_cast<std::size_t>(values.type.num_elements()), value);
  return values;
}

OpCall route_sort(std::int64_t num_tokens, std::int64_t top_k, std::int64_t num_experts) {
  CaseFile file{.op = "route_sort"};
  const CaseLine line{.inputs = {{.type = fmt::format("i32[{},{}]", num_tokens, top_k),
                                  .recipe = "experts",
                                  .options = {std::to_string(num_experts), "skewed"}}},
                      .outputs = {fmt::format("i32[{}]", num_tokens * top_k),
                                  fmt::format("i32[{}]", num_tokens * top_k),
                                  fmt::format("i32[{}]", num_experts + 1)},
                      .attributes = fmt::format("num_experts={}", num_experts)};
  OpCall call = make_call(file, line, "", Regime::kBounded, 9);
  call.op = "route_sort";
  return call;
}

// A gate above the limit, or an up beyond it on either side, is held there.
TEST(ClampedSwiglu, PassesGradientsOnTheBoundAndNoneBeyondIt) {
  const double limit = 1.5, beyond = 1.625;
  Values gate = constant({1, 4}, 0.5), up = constant({1, 4}, 0.25);
  gate.data = {limit, beyond, -4, 0.5};
  const spec::Attributes attributes{
      {"activation", "swiglu_clamped"}, {"alpha", 1.702}, {"limit", limit}};
  const auto gradients = [&](const std::vector<double>& ups) {
    up.data = ups;
    return run_all({"activation_gradient",
                    attributes,
                    {gate, up, constant({1, 4}, 1)},
                    {gate.type, gate.type}});
  };
  for (const auto& outputs : gradients({0.25, 0.25, 0.25, 0.25})) {
    EXPECT_NE(outputs[0].data[0], 0);
    EXPECT_EQ(outputs[0].data[1], 0);
    EXPECT_NE(outputs[0].data[2], 0);
    EXPECT_EQ(outputs[1].data[0], outputs[1].data[1]) << "the gate is held at its limit";
  }
  for (const auto& outputs : gradients({limit, -limit, beyond, -beyond})) {
    EXPECT_NE(outputs[1].data[0], 0);
    EXPECT_NE(outputs[1].data[1], 0);
    EXPECT_EQ(outputs[1].data[2], 0);
    EXPECT_EQ(outputs[1].data[3], 0);
  }
}

TEST(RouteSort, GroupsRowsByExpertStablyAndInvertsItself) {
  const OpCall call = route_sort(50, 2, 6);
  for (const auto& outputs : run_all(call)) {
    const std::vector<double>&row_map = outputs[0].data, &slots = outputs[1].data,
          &offsets = outputs[2].data;
    EXPECT_EQ(offsets.front(), 0);
    EXPECT_EQ(offsets.back(), 100);
    for (std::size_t e = 0; e < 6; ++e)
      for (auto p = static_cast<std::size_t>(offsets[e]);
           p < static_cast<std::size_t>(offsets[e + 1]); ++p) {
        EXPECT_EQ(call.inputs[0].data[static_cast<std::size_t>(row_map[p])],
                  static_cast<double>(e));
        EXPECT_EQ(slots[static_cast<std::size_t>(row_map[p])], static_cast<double>(p));
        if (p > static_cast<std::size_t>(offsets[e])) {
          EXPECT_LT(row_map[p - 1], row_map[p]);
        }
      }
  }
}

TEST(Permute, ThenUnpermuteWithUnitWeightsIsTheIdentityForOneExpertAToken) {
  const Values x = random({40, 13}, 0);
  const auto sorted = run_all(route_sort(40, 1, 6)).front();
  const OpCall permute{"permute", {{"top_k", std::int64_t{1}}}, {x, sorted[0]}, {x.type}};
  for (const auto& permuted : run_all(permute)) {
    const OpCall unpermute{
        "unpermute", {}, {permuted[0], constant({40, 1}, 1), sorted[1]}, {x.type}};
    for (const auto& got : run_all(unpermute)) EXPECT_EQ(got[0].data, x.data);
  }
}

TEST(Permute, ThenUnpermuteWithWeightsThatAreHalfIsTheIdentityForTwoExpertsAToken) {
  const Values x = random({40, 13}, 0);
  const auto sorted = run_all(route_sort(40, 2, 6)).front();
  const OpCall permute{
      "permute", {{"top_k", std::int64_t{2}}}, {x, sorted[0]}, {tensor_type(kF32, {80, 13})}};
  for (const auto& permuted : run_all(permute)) {
    const OpCall unpermute{
        "unpermute", {}, {permuted[0], constant({40, 2}, 0.5), sorted[1]}, {x.type}};
    for (const auto& got : run_all(unpermute)) EXPECT_EQ(got[0].data, x.data);
  }
}

TEST(PermuteGradient, OfAPermutedTensorIsTopKTimesIt) {
  const Values x = random({40, 13}, 0);
  const auto sorted = run_all(route_sort(40, 2, 6)).front();
  const spec::Attributes attributes{{"top_k", std::int64_t{2}}};
  const OpCall permute{"permute", attributes, {x, sorted[0]}, {tensor_type(kF32, {80, 13})}};
  std::vector<double> doubled = x.data;
  for (double& value : doubled) value *= 2;
  for (const auto& permuted : run_all(permute)) {
    const OpCall back{"permute_gradient", attributes, {permuted[0], sorted[1]}, {x.type}};
    for (const auto& got : run_all(back)) EXPECT_EQ(got[0].data, doubled);
  }
}

TEST(Rope, ThenItsInverseIsTheIdentity) {
  const Values x = random({33, 48}, 0);
  Values positions{tensor_type(kI32, {33}), std::vector<double>(33)};
  std::iota(positions.data.begin(), positions.data.end(), 0.0);
  const spec::Rope rope{.rotary_dim = 16};
  spec::Attributes attributes{{"head_dim", std::int64_t{24}}, {"inverse", false}};
  const OpCall table{
      "rope_table", spec::to_attributes(rope), {positions}, {tensor_type(kF32, {33, 16})}};
  for (const auto& rows : run_all(table)) {
    attributes["inverse"] = false;
    const OpCall rotate{"rope", attributes, {x, rows[0]}, {x.type}};
    // Two rotations, each off by its bound, with a table off by its own.
    std::vector<double> tolerances = output_tolerances(rotate, run_in_double(rotate))[0];
    for (double& tolerance : tolerances) tolerance *= 4;
    attributes["inverse"] = true;
    for (const auto& rotated : run_all(rotate)) {
      const OpCall back{"rope", attributes, {rotated[0], rows[0]}, {x.type}};
      for (const auto& got : run_all(back)) EXPECT_EQ(compare(got[0], x, tolerances).report, "");
    }
  }
}

// Row by row: the ops have rows of the same names.
TEST(RopePair, HasTheBitsOfNormsAndRopes) {
  constexpr std::int64_t kTokens = 37, kHeadDim = 24;
  const Values table = random({kTokens, 16}, 2);
  const Values weights[] = {random({kHeadDim}, 3), random({kHeadDim}, 4)};
  for (const DType dtype : {kF32, DType::kBFloat16})
    for (const bool has_norms : {false, true})
      for (const bool inverse : {false, true}) {
        const spec::Attributes rotation{{"head_dim", kHeadDim}, {"inverse", inverse}};
        std::vector<Values> x;
        std::vector<std::vector<std::vector<Values>>> wants;  // by tensor, row, output
        for (const std::int64_t heads : {4, 2}) {
          const TensorType type = tensor_type(dtype, {kTokens, heads * kHeadDim});
          x.push_back(random_values(type, Regime::kBounded, 5, x.size()));
          std::vector<std::vector<Values>> normed{{x.back()}}, rotated;
          if (has_norms)
            normed = run_all(
                {"rms_norm", {{"epsilon", 1e-6}}, {x.back(), weights[wants.size()]}, {type}});
          for (std::size_t row = 0; row < normed.size() || !has_norms; ++row) {
            auto all = run_all({"rope", rotation, {normed[has_norms ? row : 0][0], table}, {type}});
            if (!has_norms) rotated = std::move(all);
            if (!has_norms) break;
            rotated.push_back(all.at(row));
          }
          wants.push_back(std::move(rotated));
        }
        OpCall pair{"rope_pair", rotation, {x[0], x[1], table}, {x[0].type, x[1].type}};
        if (has_norms) {
          pair.attributes["epsilon"] = 1e-6;
          pair.inputs.insert(pair.inputs.end(), std::begin(weights), std::end(weights));
        }
        const auto got = run_all(pair);
        ASSERT_EQ(got.size(), wants[0].size());
        for (std::size_t row = 0; row < got.size(); ++row)
          for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
            EXPECT_EQ(got[row][i].data, wants[i][row][0].data) << "row " << row;
      }
}

// All probability on the experts that are chosen, each of them in turn: as even as can be.
TEST(SequenceBalanceLoss, IsOneWhereExpertsAreEquallyBusyAndSeesEachDocumentAlone) {
  Values probabilities = constant({8, 4}, 0.0), experts = constant({8, 1}, 0.0),
         documents = constant({8}, 0.0);
  const auto set = [&](const std::vector<double>& chosen) {
    std::fill(probabilities.data.begin(), probabilities.data.end(), 0.0);
    for (std::size_t t = 0; t < 8; ++t) {
      experts.data[t] = chosen[t];
      probabilities.data[4 * t + static_cast<std::size_t>(chosen[t])] = 1.0;
      documents.data[t] = t < 4 ? 0 : 4;
    }
  };
  experts.type.dtype = documents.type.dtype = kI32;
  const auto expect = [&](double want) {
    const OpCall call{"sequence_balance_loss",
                      {},
                      {constant({}, 0.5), probabilities, experts, documents},
                      {tensor_type(kF32, {})}};
    for (const auto& out : run_all(call)) EXPECT_EQ(out[0].data[0], want);
  };
  set({0, 1, 2, 3, 3, 1, 0, 2});
  expect(1);
  set({0, 1, 0, 1, 2, 3, 2, 3});  // together they are as even as above
  expect(2);
  set({0, 0, 0, 0, 2, 2, 2, 2});
  expect(4);
}

TEST(Attention, OfOneKeyIsItsValueAndLseItsScore) {
  const Values q = random({1, 8}, 0), k = random({1, 8}, 1), v = random({1, 4}, 2);
  const Values begin{tensor_type(kI32, {1}), {0}}, end{tensor_type(kI32, {1}), {1}};
  const OpCall call{"attention",
                    {{"num_heads", std::int64_t{1}},
                     {"num_kv_heads", std::int64_t{1}},
                     {"scale", 1.0},
                     {"window", std::int64_t{0}}},
                    {q, k, v, begin, end},
                    {v.type, tensor_type(kF32, {1, 1})}};
  const auto tolerances = output_tolerances(call, run_in_double(call));
  const double score = std::inner_product(q.data.begin(), q.data.end(), k.data.begin(), 0.0);
  for (const auto& got : run_all(call)) {
    EXPECT_EQ(compare(got[0], v, tolerances[0]).report, "");
    const Values want{got[1].type, {score}};
    EXPECT_EQ(compare(got[1], want, tolerances[1]).report, "");
  }
}

// Causal rows of one head with a sink: the scores of a softmax that has one more key, whose value
// is 0.
TEST(Attention, WithASinkIsThatWithOneMoreKeyWithoutAValue) {
  constexpr std::int64_t kCount = 150, kWidth = 9, kValues = 5;
  constexpr double kSink = 1.5;
  Values q = random({kCount, kWidth}, 0), k = random({kCount, kWidth}, 1),
         v = random({kCount, kValues}, 2);
  for (std::int64_t t = 0; t < kCount; ++t) {  // the last column gives the sink's score alone
    q.data[static_cast<std::size_t>((t + 1) * kWidth - 1)] = 1;
    k.data[static_cast<std::size_t>((t + 1) * kWidth - 1)] = 0;
  }
  const spec::Attributes attributes{{"num_heads", std::int64_t{1}},
                                    {"num_kv_heads", std::int64_t{1}},
                                    {"scale", 0.5},
                                    {"window", std::int64_t{0}}};
  const std::vector<TensorType> outputs{tensor_type(kF32, {kCount, kValues}),
                                        tensor_type(kF32, {kCount, 1})};
  Values begin{tensor_type(kI32, {kCount}), std::vector<double>(kCount, 0.0)}, end = begin;
  for (std::size_t t = 0; t < end.data.size(); ++t) end.data[t] = static_cast<double>(t + 1);
  const OpCall with_sink{
      "attention", attributes, {q, k, v, begin, end, {tensor_type(kF32, {1}), {kSink}}}, outputs};
  std::vector<double> sink_key(kWidth, 0.0);
  sink_key.back() = 2 * kSink;
  k.data.insert(k.data.begin(), sink_key.begin(), sink_key.end());
  v.data.insert(v.data.begin(), kValues, 0.0);
  k.type = tensor_type(kF32, {kCount + 1, kWidth});
  v.type = tensor_type(kF32, {kCount + 1, kValues});
  for (double& row_end : end.data) row_end += 1;
  const std::vector<Values> want =
      run_in_double({"attention", attributes, {q, k, v, begin, end}, outputs});
  const auto tolerances = output_tolerances(with_sink, want);
  for (const auto& got : run_all(with_sink))
    for (std::size_t o = 0; o < 2; ++o) {
      const Values wanted{got[o].type, want[o].data};
      EXPECT_EQ(compare(got[o], wanted, tolerances[o]).report, "") << "output " << o;
    }
}

// Without a key a row has the sink as its lse; a sink of -inf is none.
TEST(Attention, OfNoKeyHasTheSinkAsLse) {
  const Values q = random({2, 8}, 0), k = random({2, 4}, 1), v = random({2, 4}, 2),
               sinks{tensor_type(kF32, {2}), {0.75, -std::numeric_limits<double>::infinity()}},
               begin{tensor_type(kI32, {2}), {1, 1}}, end{tensor_type(kI32, {2}), {1, 2}};
  OpCall call{"attention",
              {{"num_heads", std::int64_t{2}},
               {"num_kv_heads", std::int64_t{1}},
               {"scale", 1.0},
               {"window", std::int64_t{0}}},
              {q, k, v, begin, end, sinks},
              {tensor_type(kF32, {2, 8}), tensor_type(kF32, {2, 2})}};
  for (const auto& got : run_all(call)) {
    EXPECT_EQ(std::vector<double>(got[0].data.begin(), got[0].data.begin() + 8),
              std::vector<double>(8, 0.0));
    EXPECT_EQ(got[1].data[0], 0.75);
    EXPECT_EQ(got[1].data[1], -std::numeric_limits<double>::infinity());
    // The second head of the second row sees one key.
    EXPECT_EQ(std::vector<double>(got[0].data.begin() + 12, got[0].data.end()),
              std::vector<double>(v.data.begin() + 4, v.data.end()));
  }
}

// The last of `num_rows` rows, alone when `alone`, over as many keys.
OpCall last_row_of_attention(DType dtype, std::int64_t num_rows, std::int64_t window, bool alone,
                             bool has_sinks) {
  const auto of_rows = [&](std::int64_t width, std::uint64_t stream) {
    return random_values(tensor_type(dtype, {num_rows, width}), Regime::kBounded, 5, stream);
  };
  const Values q = of_rows(32, 0), k = of_rows(16, 1), v = of_rows(16, 2);
  const std::int64_t first = alone ? num_rows - 1 : 0, count = num_rows - first;
  Values rows{tensor_type(dtype, {count, 32}), {q.data.begin() + 32 * first, q.data.end()}};
  Values begin{tensor_type(kI32, {count}), {}}, end = begin;
  for (std::int64_t t = first; t < num_rows; ++t) {
    begin.data.push_back(0);
    end.data.push_back(static_cast<double>(t + 1));
  }
  OpCall call{"attention",
              {{"num_heads", std::int64_t{2}},
               {"num_kv_heads", std::int64_t{1}},
               {"scale", 2.0},
               {"window", window}},
              {rows, k, v, begin, end},
              {rows.type, tensor_type(kF32, {count, 2})}};
  if (has_sinks) call.inputs.push_back({tensor_type(kF32, {2}), {3.0, -1.0}});
  return call;
}

TEST(Attention, OfOneRowHasTheBitsThatItHasAmongOthers) {
  for (const DType dtype : {kF32, DType::kBFloat16})
    for (const std::int64_t num_rows : {7, 129, 200, 300})
      for (const std::int64_t window : {0, 5, 150}) {
        const bool has_sinks = num_rows % 2 == 1;
        const auto together =
                       run_all(last_row_of_attention(dtype, num_rows, window, false, has_sinks)),
                   alone = run_all(last_row_of_attention(dtype, num_rows, window, true, has_sinks));
        ASSERT_EQ(together.size(), alone.size());
        for (std::size_t i = 0; i < alone.size(); ++i)
          for (std::size_t o = 0; o < 2; ++o) {
            const std::vector<double>&all = together[i][o].data, &one = alone[i][o].data;
            EXPECT_TRUE(std::equal(one.rbegin(), one.rend(), all.rbegin()))
                << to_string(dtype) << ", row kernel " << i << " output " << o << " of " << num_rows
                << " rows, window " << window;
          }
      }
}

TEST(ClipFactor, IsNaNForANormThatIsNotFinite) {
  for (const double norm :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (const double max_norm : {0.0, 1.0}) {
      const OpCall call{"clip_factor",
                        {{"max_norm", max_norm}},
                        {Values{tensor_type(kF32, {}), {norm}}},
                        {tensor_type(kF32, {})}};
      for (const auto& got : run_all(call)) EXPECT_TRUE(std::isnan(got[0].data[0])) << max_norm;
    }
}

TEST(Cast, KeepsNaN) {
  for (const char* rounding : {"even", "half_away"}) {
    const OpCall call{"cast",
                      {{"dtype", std::string("bf16")}, {"rounding", std::string(rounding)}},
                      {constant({19}, std::numeric_limits<double>::quiet_NaN())},
                      {tensor_type(DType::kBFloat16, {19})}};
    for (const auto& got : run_all(call))
      for (const double value : got[0].data) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(LinearActivationGradient, GivesTheActivationWithItsOwnBits) {
  const std::map<std::string, std::string> alone_of{{"amx_bf16", "cpu:activation_avx512"},
                                                    {"avx512_bf16", "cpu:activation_avx512"},
                                                    {"avx512", "cpu:activation_avx512"},
                                                    {"avx2", "cpu:activation_avx2"},
                                                    {"portable", "cpu:activation"}};
  for (const DType dtype : {kF32, DType::kBFloat16}) {
    const auto random = [&](std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
      return random_values(tensor_type(dtype, {rows, columns}), Regime::kBounded, 5, stream);
    };
    const Values gate = random(70, 333, 0), up = random(70, 333, 1);
    const spec::Attributes swiglu{{"activation", "swiglu"}};
    OpCall call{"linear_activation_gradient",
                swiglu,
                {random(70, 40, 2), random(40, 333, 3), gate, up},
                {gate.type, gate.type}};
    const OpCall apart{"activation", swiglu, {gate, up}, {gate.type}};
    for (const auto& [suffix, activation] : alone_of) {
      const kernels::Kernel* kernel =
          kernels::find_kernel("cpu:linear_activation_gradient_" + suffix);
      call.attributes = swiglu;
      call.outputs.resize(2);
      if (kernel == nullptr || !supports(*kernel, call)) continue;
      const RunResult alone = run_kernel(*kernel, *ops::find_op(call.op), call);
      call.attributes["with_activation"] = true;
      call.outputs.push_back(gate.type);
      const RunResult got = run_kernel(*kernel, *ops::find_op(call.op), call);
      EXPECT_EQ(got.violation, "") << kernel->name;
      for (const std::size_t o : {std::size_t{0}, std::size_t{1}})
        EXPECT_EQ(compare_bits(got.outputs[o], alone.outputs[o], {suffix}).report, "");
      const RunResult want =
          run_kernel(*kernels::find_kernel(activation), *ops::find_op("activation"), apart);
      EXPECT_EQ(compare_bits(got.outputs[2], want.outputs[0], {suffix}).report, "");
    }
  }
}

}  // namespace
}  // namespace anabatic::testing
