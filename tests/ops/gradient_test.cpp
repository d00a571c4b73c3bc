// SPDX-License-Identifier: Apache-2.0
// The gradient kernels of `ref` against central differences of its forward kernels, in double.
#include <gtest/gtest.h>

#include <cmath>

#include "spec/activation.h"
#include "spec/dropout.h"
#include "spec/key_blocks.h"
#include "spec/router.h"
#include "spec/sparse_layout.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr auto kDouble = DType::kFloat64;
using Shape = std::vector<std::int64_t>;

Values random(std::initializer_list<std::int64_t> shape, std::uint64_t stream) {
  return random_values(tensor_type(kDouble, shape), Regime::kBounded, 11, stream);
}

Values integers(std::vector<double> data, const Shape& shape) {
  return {tensor_type(DType::kInt32, shape), std::move(data)};
}
Values integers(std::vector<double> data) {
  const Shape shape{static_cast<std::int64_t>(data.size())};
  return integers(std::move(data), shape);
}

Values scalar(double value) { return {tensor_type(kDouble, {}), {value}}; }

TensorType doubles(std::initializer_list<std::int64_t> shape) {
  return tensor_type(kDouble, shape);
}

std::vector<Values> run(const OpCall& call) { return run_in_double(call); }

// The objective Σ cotangent·output over the outputs that have a cotangent (an empty one has none).
struct Objective {
  double value = 0, magnitude = 0;
};

Objective objective(const OpCall& call, const std::vector<std::vector<double>>& cotangents) {
  Objective sum;
  const std::vector<Values> outputs = run(call);
  for (std::size_t o = 0; o < cotangents.size(); ++o)
    for (std::size_t i = 0; i < cotangents[o].size(); ++i) {
      sum.value += cotangents[o][i] * outputs[o].data[i];
      sum.magnitude += std::abs(cotangents[o][i] * outputs[o].data[i]);
    }
  return sum;
}

void expect_gradient(OpCall forward, std::size_t input,
                     const std::vector<std::vector<double>>& cotangents, const Values& got,
                     bool zeros_expected = false) {
  Values want{.type = forward.inputs[input].type};
  std::vector<double> tolerances;
  const double h = difference_step();
  for (double& value : forward.inputs[input].data) {
    const double at = value;
    value = at + h;
    const Objective above = objective(forward, cotangents);
    value = at - h;
    const Objective below = objective(forward, cotangents);
    value = at;
    want.data.push_back((above.value - below.value) / (2 * h));
    tolerances.push_back(difference_tolerance(above.magnitude));
  }
  EXPECT_EQ(compare(got, want, tolerances, {.repro = "ref_test", .zeros_expected = zeros_expected})
                .report,
            "")
      << forward.op << " input " << input;
}

Values gradient(std::string_view op, spec::Attributes attributes, std::vector<Values> inputs,
                std::vector<TensorType> outputs, std::size_t output = 0) {
  return run({op, std::move(attributes), std::move(inputs), std::move(outputs)})[output];
}

TEST(LinearGradient, MatchesFiniteDifferences) {
  const Values x = random({3, 5}, 0), weight = random({4, 5}, 1), bias = random({4}, 2),
               dy = random({3, 4}, 3);
  const OpCall forward{"linear", {}, {x, weight, bias}, {dy.type}};
  const spec::Attributes to_f64{{"output_dtype", std::string("f64")}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("linear_input_gradient", to_f64, {dy, weight}, {x.type}));
  expect_gradient(forward, 1, {dy.data},
                  gradient("linear_weight_gradient", {}, {x, dy}, {weight.type}));
  expect_gradient(forward, 2, {dy.data}, gradient("sum_rows", {}, {dy}, {bias.type}));
}

TEST(GroupedLinearGradient, MatchesFiniteDifferencesWithEmptyExperts) {
  const Values x = random({6, 3}, 0), weight = random({4, 5, 3}, 1), dy = random({6, 5}, 2);
  const Values offsets = integers({0, 0, 4, 4, 6});
  const OpCall forward{"grouped_linear", {}, {x, weight, offsets}, {dy.type}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("grouped_linear_input_gradient", {}, {dy, weight, offsets}, {x.type}));
  expect_gradient(forward, 1, {dy.data},
                  gradient("grouped_linear_weight_gradient", {}, {x, dy, offsets}, {weight.type}));
}

TEST(GroupedLinearGradient, OfTheBiasSumsTheRowsOfAGroup) {
  const Values x = random({6, 3}, 0), weight = random({4, 5, 3}, 1), bias = random({4, 5}, 2),
               dy = random({6, 5}, 3);
  const Values offsets = integers({0, 0, 4, 4, 6});
  const OpCall forward{"grouped_linear", {{"bias", true}}, {x, weight, offsets, bias}, {dy.type}};
  expect_gradient(forward, 3, {dy.data}, gradient("sum_rows", {}, {dy, offsets}, {bias.type}),
                  true);
}

// The values of the blocks are the weight: the gradient of an absent element is 0.
TEST(SparseLinearGradient, MatchesFiniteDifferencesAtEveryDensity) {
  const spec::Attributes sparse{{"pattern", std::string("block16")}};
  const auto with = [&](const char* key, std::int64_t value) {
    spec::Attributes attributes = sparse;
    attributes[key] = value;
    return attributes;
  };
  // Steps of the blocks of the first and of the second matrix, each with panels of 16 of its 20
  // lines, of a depth of 18.
  for (const std::vector<double>& index : {std::vector<double>{0, 0, 0, 0, 0, 0},
                                           {0, 0, 1, 0, 0, 1, 1, 1},
                                           {0, 2, 4, 0, 1, 0, 1, 0, 2, 4, 0, 1, 0, 1}}) {
    const auto width = static_cast<std::int64_t>(index.size()) / 2, kept = width - 3;
    const Values x = random({5, 18}, 0), values = random({2, kept, 256}, 1),
                 dy = random({5, 20}, 2), where = integers(index, {2, width}),
                 offsets = integers({0, 5, 5});
    const bool is_empty = kept == 0;
    const OpCall forward{
        "grouped_sparse_linear", with("out", 20), {x, values, where, offsets}, {dy.type}};
    const Values dw = gradient("grouped_sparse_linear_weight_gradient", sparse,
                               {x, dy, where, offsets}, {doubles({2, 20, 18})});
    // That of values, in their order: zero in padding.
    Values of_values = values;
    std::fill(of_values.data.begin(), of_values.data.end(), 0.0);
    double outside = 0;
    for (const double value : dw.data) outside += std::abs(value);
    for (std::int64_t e = 0; e < 2; ++e)
      for (std::int64_t panel = 0; panel < 2; ++panel) {
        const auto* of = index.data() + e * width;
        for (auto n = static_cast<std::int64_t>(of[panel]);
             n < static_cast<std::int64_t>(of[panel + 1]); ++n)
          for (std::int64_t line = panel * 16; line < std::min<std::int64_t>(20, panel * 16 + 16);
               ++line) {
            const auto first = static_cast<std::int64_t>(of[3 + n]) * 16;
            for (std::int64_t k = first; k < std::min<std::int64_t>(18, first + 16); ++k) {
              const double value = dw.data[static_cast<std::size_t>((e * 20 + line) * 18 + k)];
              of_values.data[static_cast<std::size_t>(
                  (e * kept + n) * 256 + spec::place_in_block(16, false, line % 16, k - first))] =
                  value;
              outside -= std::abs(value);
            }
          }
      }
    EXPECT_LE(std::abs(outside), difference_tolerance(1)) << kept;
    expect_gradient(forward, 1, {dy.data}, of_values, true);
    // The input gradient reads the transpose: here that of all blocks, or of none.
    if (kept != 4 && !is_empty) continue;
    Values transposed = values;
    for (std::int64_t block = 0; block < 2 * kept; ++block)
      for (std::int64_t line = 0; line < 16; ++line)
        for (std::int64_t k = 0; k < 16; ++k) {
          const std::int64_t e = block / 4, n = block % 4, turned = e * 4 + n % 2 * 2 + n / 2;
          transposed.data[static_cast<std::size_t>(turned * 256 +
                                                   spec::place_in_block(16, false, k, line))] =
              values.data[static_cast<std::size_t>(block * 256 +
                                                   spec::place_in_block(16, false, line, k))];
        }
    expect_gradient(forward, 0, {dy.data},
                    gradient("grouped_sparse_linear_input_gradient", with("in", 18),
                             {dy, transposed, where, offsets}, {x.type}),
                    true);
  }
}

// Two of the slots of a token may name one expert.
TEST(ExpertBiasGradient, MatchesFiniteDifferencesWithUnchosenExperts) {
  const Values x = random({5, 3}, 0), bias = random({4, 3}, 1), weights = random({5, 2}, 2),
               dy = random({5, 3}, 3);
  const Values experts = integers({0, 3, 3, 1, 1, 1, 0, 3, 3, 0}, {5, 2});
  const OpCall forward{"expert_bias", {}, {x, bias, weights, experts}, {dy.type}};
  expect_gradient(forward, 0, {dy.data}, dy);
  expect_gradient(forward, 1, {dy.data},
                  gradient("expert_bias_weight_gradient", {{"num_experts", std::int64_t{4}}},
                           {dy, weights, experts}, {bias.type}),
                  true);
  expect_gradient(forward, 2, {dy.data},
                  gradient("expert_bias_router_gradient", {}, {dy, bias, experts}, {weights.type}));
}

TEST(LinearManyGradient, MatchesFiniteDifferences) {
  const Values x = random({3, 5}, 0), a = random({4, 5}, 1), b = random({2, 5}, 2),
               da = random({3, 4}, 3), db = random({3, 2}, 4);
  const OpCall forward{"linear_many", {}, {x, a, b}, {da.type, db.type}};
  expect_gradient(forward, 0, {da.data, db.data},
                  gradient("linear_many_input_gradient", {}, {da, a, db, b}, {x.type}));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    expect_gradient(forward, 1 + i, {da.data, db.data},
                    gradient("linear_many_weight_gradient", {}, {x, da, db}, {a.type, b.type}, i));
}

TEST(GroupedLinearManyGradient, MatchesFiniteDifferencesWithEmptyExperts) {
  const Values x = random({6, 3}, 0), a = random({4, 5, 3}, 1), b = random({4, 2, 3}, 2),
               da = random({6, 5}, 3), db = random({6, 2}, 4);
  const Values offsets = integers({0, 0, 4, 4, 6});
  const OpCall forward{"grouped_linear_many", {}, {x, a, b, offsets}, {da.type, db.type}};
  expect_gradient(
      forward, 0, {da.data, db.data},
      gradient("grouped_linear_many_input_gradient", {}, {da, a, db, b, offsets}, {x.type}));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    expect_gradient(forward, 1 + i, {da.data, db.data},
                    gradient("grouped_linear_many_weight_gradient", {}, {x, da, db, offsets},
                             {a.type, b.type}, i));
}

TEST(EmbeddingGradient, MatchesFiniteDifferencesWithRepeatedAndUnseenTokens) {
  const Values table = random({5, 3}, 0), indices = integers({4, 1, 4, 0}), dy = random({4, 3}, 1);
  const OpCall forward{"embedding", {}, {table, indices}, {dy.type}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("embedding_weight_gradient", {{"rows", std::int64_t{5}}}, {indices, dy},
                           {table.type}));
}

TEST(ClampGradient, MatchesFiniteDifferencesAwayFromTheBounds) {
  const Values x = random({4, 6}, 0), dy = random({4, 6}, 1);
  const spec::Attributes attributes{{"limit", 0.75}};
  const Values dx = gradient("clamp_gradient", attributes, {x, dy}, {x.type});
  EXPECT_GT(std::count(dx.data.begin(), dx.data.end(), 0.0), 2);
  EXPECT_LT(std::count(dx.data.begin(), dx.data.end(), 0.0), 22);
  expect_gradient({"clamp", attributes, {x}, {x.type}}, 0, {dy.data}, dx, true);
}

TEST(ClampGradient, PassesWhatIsOnTheBound) {
  const Values x{doubles({1, 5}), {-0.75, 0.75, 0.0, -0.8, 0.8}},
      dy{doubles({1, 5}), {1, 2, 3, 4, 5}};
  EXPECT_EQ(gradient("clamp_gradient", {{"limit", 0.75}}, {x, dy}, {x.type}).data,
            (std::vector<double>{1, 2, 3, 0, 0}));
}

TEST(DropoutGradient, IsItselfAndMatchesFiniteDifferencesOfTheSameDraws) {
  const Values x = random({4, 130}, 0), dy = random({4, 130}, 1), draws = integers({3, -4, 5});
  const spec::Attributes attributes{{"rate", 0.3}, {"site", std::string("mlp")}};
  const Values dx = gradient("dropout", attributes, {dy, draws}, {x.type});
  EXPECT_GT(std::count(dx.data.begin(), dx.data.end(), 0.0), 100);
  EXPECT_LT(std::count(dx.data.begin(), dx.data.end(), 0.0), 200);
  expect_gradient({"dropout", attributes, {x, draws}, {x.type}}, 0, {dy.data}, dx, true);
}

TEST(RmsNormGradient, MatchesFiniteDifferencesPlainAndPerHead) {
  for (const std::int64_t groups : {1, 3}) {
    const std::int64_t width = 5;
    const Values x = random({4, groups * width}, 0), weight = random({width}, 1),
                 dy = random({4, groups * width}, 2);
    // An epsilon of the size of the data, so that its place in the formula shows.
    const spec::Attributes attributes{{"epsilon", 0.5}};
    spec::Attributes with_width = attributes;
    with_width["width"] = width;
    const OpCall forward{"rms_norm", attributes, {x, weight}, {dy.type}};
    expect_gradient(forward, 0, {dy.data},
                    gradient("rms_norm_input_gradient", attributes, {x, weight, dy}, {x.type}));
    expect_gradient(forward, 1, {dy.data},
                    gradient("rms_norm_weight_gradient", with_width, {x, dy}, {weight.type}));
  }
}

TEST(RmsNormInputGradient, AddsTheResidual) {
  const Values x = random({4, 6}, 0), weight = random({6}, 1), dy = random({4, 6}, 2),
               residual = random({4, 6}, 3);
  const spec::Attributes attributes{{"epsilon", 0.5}};
  const OpCall forward{"add_rms_norm", attributes, {x, weight, residual}, {x.type, x.type}};
  const Values sum = run(forward)[0];
  // After the sum come the norm, whose gradient is dy, and every other reader of the sum.
  const Values got =
      gradient("rms_norm_input_gradient", attributes, {sum, weight, dy, residual}, {x.type});
  expect_gradient(forward, 0, {residual.data, dy.data}, got);
  expect_gradient(forward, 2, {residual.data, dy.data}, got);
}

TEST(LayerNormGradient, MatchesFiniteDifferences) {
  const Values x = random({4, 5}, 0), weight = random({5}, 1), bias = random({5}, 2),
               dy = random({4, 5}, 3);
  // An epsilon of the size of the data, so that its place in the formula shows.
  const spec::Attributes attributes{{"epsilon", 0.5}};
  const OpCall forward{"layer_norm", attributes, {x, weight, bias}, {dy.type}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("layer_norm_input_gradient", attributes, {x, weight, dy}, {x.type}));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    expect_gradient(
        forward, 1 + i, {dy.data},
        gradient("layer_norm_weight_gradient", attributes, {x, dy}, {weight.type, bias.type}, i));
}

TEST(RopeGradient, MatchesFiniteDifferencesOnAPartialRotation) {
  const Values x = random({3, 12}, 0), table = random({3, 4}, 1), dy = random({3, 12}, 2);
  spec::Attributes attributes{{"head_dim", std::int64_t{6}}, {"inverse", false}};
  const OpCall forward{"rope", attributes, {x, table}, {dy.type}};
  attributes["inverse"] = true;
  expect_gradient(forward, 0, {dy.data}, gradient("rope", attributes, {dy, table}, {x.type}));
}

struct AttentionCase {
  std::int64_t num_heads, num_kv_heads, key_width, value_width, window;
  std::vector<double> key_begin, key_end;
  std::int64_t num_keys;
  bool has_sinks = false;
  // Lists of key blocks: size of a block; offsets of the lists of each group of heads, and ids.
  std::int64_t block_size = 0, num_groups = 1;
  std::vector<double> block_offsets{}, block_ids{};
  double dropout_rate = 0;
};

void check_attention(const AttentionCase& c) {
  const auto num_rows = static_cast<std::int64_t>(c.key_begin.size());
  const Values q = random({num_rows, c.num_heads * c.key_width}, 0),
               k = random({c.num_keys, c.num_kv_heads * c.key_width}, 1),
               v = random({c.num_keys, c.num_kv_heads * c.value_width}, 2),
               dout = random({num_rows, c.num_heads * c.value_width}, 3);
  spec::Attributes attributes{{"num_heads", c.num_heads},
                              {"num_kv_heads", c.num_kv_heads},
                              {"scale", 0.6},
                              {"window", c.window}};
  OpCall forward{"attention",
                 attributes,
                 {q, k, v, integers(c.key_begin), integers(c.key_end)},
                 {dout.type, doubles({num_rows, c.num_heads})}};
  std::vector<Values> inputs = forward.inputs;
  const Values sinks = random({c.num_heads}, 4);
  if (c.has_sinks) forward.inputs.push_back(sinks);
  std::vector<Values> lists;
  if (c.dropout_rate > 0) {
    attributes[std::string(spec::kDropoutRate)] = c.dropout_rate;
    attributes[std::string(spec::kDropoutSite)] = std::string("attention");
    forward.attributes = attributes;
    lists.push_back(integers({11, -12, 13}));
    forward.inputs.push_back(lists[0]);
  }
  if (c.block_size > 0) {
    const auto blocks = static_cast<std::int64_t>(c.block_offsets.size()) / c.num_groups;
    lists.push_back({tensor_type(DType::kInt32, {c.num_groups, blocks}), c.block_offsets});
    lists.push_back(integers(c.block_ids));
    attributes[std::string(spec::kBlockSize)] = c.block_size;
    forward.attributes = attributes;
    forward.inputs.insert(forward.inputs.end(), lists.end() - 2, lists.end());
  }
  const std::vector<Values> results = run(forward);
  inputs.insert(inputs.end(), {results[0], results[1], dout});
  inputs.insert(inputs.end(), lists.begin(), lists.end());
  attributes["with_delta"] = c.has_sinks;
  std::vector<TensorType> types{q.type, k.type, v.type};
  if (c.has_sinks) types.push_back(results[1].type);
  for (std::size_t i = 0; i < 3; ++i)
    expect_gradient(forward, i, {dout.data},
                    gradient("attention_gradient", attributes, inputs, types, i));
  if (!c.has_sinks) return;
  const Values delta = gradient("attention_gradient", attributes, inputs, types, 3);
  expect_gradient(forward, 5, {dout.data},
                  gradient("sinks_gradient", {}, {delta, results[1], sinks}, {sinks.type}));
}

TEST(AttentionGradient, MatchesFiniteDifferencesOnACausalDocument) {
  check_attention({2, 2, 3, 3, 0, {0, 0, 0, 0}, {1, 2, 3, 4}, 4});
}
TEST(AttentionGradient, MatchesFiniteDifferencesWithGroupsWindowAndUnequalHeads) {
  check_attention({4, 2, 3, 2, 2, {0, 0, 0, 3, 3, 3}, {1, 2, 3, 4, 5, 6}, 6});
}
TEST(AttentionGradient, MatchesFiniteDifferencesWithFewerRowsThanKeysAndRowsWithoutKeys) {
  check_attention({2, 1, 4, 3, 0, {2, 2, 2}, {2, 4, 5}, 5});
}
TEST(AttentionGradient, MatchesFiniteDifferencesWithSinks) {
  check_attention({2, 2, 3, 3, 0, {0, 0, 0, 0}, {1, 2, 3, 4}, 4, true});
  check_attention({4, 2, 3, 2, 1, {0, 0, 0, 3, 3, 3}, {1, 2, 3, 4, 5, 6}, 6, true});
  check_attention({2, 1, 4, 3, 0, {2, 2, 2}, {2, 4, 5}, 5, true});
}

TEST(AttentionGradient, MatchesFiniteDifferencesWithListsOfKeyBlocks) {
  // Two documents in blocks of two rows; of the first one, block 1 does not see block 0.
  AttentionCase c{2, 2, 3, 3, 0, {0, 0, 0, 0, 4, 4, 4}, {1, 2, 3, 4, 5, 6, 7}, 7};
  c.block_size = 2;
  c.block_offsets = {0, 1, 2};
  c.block_ids = {0, 1};
  check_attention(c);
  // Lists of each head, one of them empty; a window; sinks.
  AttentionCase by_heads{4, 2, 3, 2, 3, {0, 0, 0, 0, 0, 0}, {1, 2, 3, 4, 5, 6}, 6, true};
  by_heads.block_size = 3;
  by_heads.num_groups = 4;
  by_heads.block_offsets = {0, 1, 2, 2, 3, 5, 5, 6, 6, 6, 7, 8};
  by_heads.block_ids = {0, 1, 0, 0, 1, 0, 0, 0};
  check_attention(by_heads);
}

TEST(AttentionGradient, MatchesFiniteDifferencesWithDropout) {
  AttentionCase c{4, 2, 3, 2, 3, {0, 0, 0, 3, 3, 3}, {1, 2, 3, 4, 5, 6}, 6, true};
  c.dropout_rate = 0.4;
  check_attention(c);
  c.block_size = 2;
  c.block_offsets = {0, 1, 3, 5};
  c.block_ids = {0, 0, 1, 0, 1};
  check_attention(c);
}

TEST(ActivationGradient, MatchesFiniteDifferencesForEveryActivation) {
  const Values gate = random({4, 5}, 0), up = random({4, 5}, 1), dy = random({4, 5}, 2);
  for (const spec::ActivationRow& row : spec::activation_rows()) {
    SCOPED_TRACE(row.name);
    // With values on both sides of a clamp.
    const spec::Attributes attributes{{"activation", std::string(row.name)}, {"limit", 0.7}};
    std::vector<Values> inputs{gate};
    if (row.is_gated) inputs.push_back(up);
    const OpCall forward{"activation", attributes, inputs, {dy.type}};
    const std::vector<TensorType> types(inputs.size(), gate.type);
    std::vector<Values> read = inputs;
    read.push_back(dy);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      expect_gradient(forward, i, {dy.data},
                      gradient("activation_gradient", attributes, read, types, i));
  }
}

TEST(RouterGradient, MatchesFiniteDifferencesWithAndWithoutNormalisationAndSums) {
  const Values logits = random({5, 6}, 0), dweights = random({5, 2}, 1), dsums = random({6}, 2);
  for (const bool normalize : {false, true})
    for (const bool with_sums : {false, true}) {
      const OpCall forward{"router",
                           {{"top_k", std::int64_t{2}}, {"normalize", normalize}},
                           {logits},
                           {doubles({5, 2}), tensor_type(DType::kInt32, {5, 2}), doubles({5, 6}),
                            doubles({6}), doubles({6})}};
      const std::vector<Values> out = run(forward);
      std::vector<Values> inputs{out[2], out[1], out[0], dweights};
      std::vector<std::vector<double>> cotangents{dweights.data, {}, {}, {}, {}};
      if (with_sums) {
        inputs.push_back(dsums);
        cotangents[4] = dsums.data;
      }
      expect_gradient(
          forward, 0, cotangents,
          gradient("router_gradient", {{"normalize", normalize}}, inputs, {logits.type}));
    }
}

TEST(RouterGradient, MatchesFiniteDifferencesByProbabilitiesAndBySumsOfDocuments) {
  const Values logits = random({5, 6}, 0), dweights = random({5, 2}, 1), dsums = random({6}, 2),
               dprobabilities = random({5, 6}, 3), documents = integers({0, 0, -1, 3, -1});
  for (const bool by_sums : {false, true}) {
    const OpCall forward{"router",
                         {{"top_k", std::int64_t{2}}, {"normalize", true}},
                         {logits, documents},
                         {doubles({5, 2}), tensor_type(DType::kInt32, {5, 2}), doubles({5, 6}),
                          doubles({6}), doubles({6})}};
    const std::vector<Values> out = run(forward);
    std::vector<Values> inputs{out[2], out[1], out[0], dweights};
    std::vector<std::vector<double>> cotangents{dweights.data, {}, {}, {}, {}};
    inputs.push_back(by_sums ? dsums : dprobabilities);
    cotangents[by_sums ? 4 : 2] = inputs.back().data;
    if (by_sums) inputs.push_back(documents);
    expect_gradient(forward, 0, cotangents,
                    gradient("router_gradient", {{"normalize", true}}, inputs, {logits.type}));
  }
}

struct RouterCase {
  const char* name;
  spec::RouterForm form;
  bool with_sums = false;
};

// Forms of the weight and of the choice. Chosen experts keep their distance, so that a difference
// does not change the choice.
TEST(RouterGradient, MatchesFiniteDifferencesInEveryForm) {
  using enum spec::RouterScore;
  const Values logits = random({7, 6}, 0), bias = random({6}, 4), dweights = random({7, 3}, 1),
               dsums = random({6}, 2);
  const std::vector<RouterCase> cases{
      {"scale", {.scale = 2.5}},
      {"epsilon", {.normalizes = true, .epsilon = 0.3, .scale = 2.5}, true},
      {"floor of some rows", {.normalizes = true, .floor = 0.8, .scale = 0.5}, true},
      {"sigmoid", {.score = kSigmoid, .scale = 2.5}, true},
      {"normalised sigmoid", {.score = kSigmoid, .normalizes = true, .epsilon = 1e-20}, true},
      {"sigmoid with a floor", {.score = kSigmoid, .normalizes = true, .floor = 1.8}},
      {"bias", {.score = kSigmoid, .has_bias = true, .normalizes = true}},
      {"groups", {.groups = 3, .group_top_k = 2, .normalizes = true}},
      {"groups of a bias",
       {.score = kSigmoid,
        .has_bias = true,
        .groups = 3,
        .group_top_k = 2,
        .group_score = spec::GroupScore::kTop2,
        .normalizes = true,
        .scale = 2.5}},
  };
  for (RouterCase c : cases) {
    SCOPED_TRACE(c.name);
    c.form.top_k = 3;
    OpCall forward{"router",
                   spec::to_attributes(c.form),
                   {logits},
                   {doubles({7, 3}), tensor_type(DType::kInt32, {7, 3}), doubles({7, 6}),
                    doubles({6}), doubles({6})}};
    if (c.form.has_bias) forward.inputs.push_back(bias);
    const std::vector<Values> out = run(forward);
    const bool is_sigmoid = c.form.score == kSigmoid;
    std::vector<Values> inputs{is_sigmoid ? logits : out[2], out[1], out[0], dweights};
    std::vector<std::vector<double>> cotangents{dweights.data, {}, {}, {}, {}};
    if (c.with_sums) {
      inputs.push_back(dsums);
      cotangents[4] = dsums.data;
    }
    expect_gradient(
        forward, 0, cotangents,
        gradient("router_gradient", spec::gradient_attributes(c.form), inputs, {logits.type}),
        true);
  }
}

// At the experts that are chosen at 0 although they are barred.
TEST(RouterGradient, PassesNothingThroughBarredExperts) {
  const Values logits{doubles({1, 4}), {0.0, -900.0, -0.25, -0.5}},
      dweights{doubles({1, 2}), {1.5, -2.0}};
  const spec::RouterForm form{.top_k = 2,
                              .groups = 2,
                              .group_top_k = 1,
                              .barred = spec::BarredExperts::kZero,
                              .normalizes = true,
                              .scale = 2};
  const OpCall forward{"router",
                       spec::to_attributes(form),
                       {logits},
                       {doubles({1, 2}), tensor_type(DType::kInt32, {1, 2}), doubles({1, 4}),
                        doubles({4}), doubles({4})}};
  std::vector<Values> out = run(forward);
  EXPECT_EQ(out[1].data, (std::vector<double>{0, 1}));  // 1 has score 0 too, and a lower number
  EXPECT_EQ(out[0].data, (std::vector<double>{2, 0}));
  out[1].data[1] = 2;  // as if it had been chosen: the weight says that it is barred
  const Values got = gradient("router_gradient", spec::gradient_attributes(form),
                              {out[2], out[1], out[0], dweights}, {logits.type});
  EXPECT_EQ(got.data, (std::vector<double>{0, 0, 0, 0}));
}

TEST(GateRowsGradient, MatchesFiniteDifferences) {
  const Values x = random({4, 5}, 0), gate = random({4, 1}, 1), dy = random({4, 5}, 2);
  const OpCall forward{"gate_rows", {}, {x, gate}, {dy.type}};
  for (std::size_t i = 0; i < 2; ++i)
    expect_gradient(forward, i, {dy.data},
                    gradient("gate_rows_gradient", {}, {x, gate, dy}, {x.type, gate.type}, i));
}

TEST(PermuteGradient, MatchesFiniteDifferences) {
  const Values x = random({3, 4}, 0), dy = random({6, 4}, 1);
  const Values row_map = integers({5, 0, 3, 2, 4, 1}), slots = integers({1, 5, 3, 2, 4, 0});
  const spec::Attributes attributes{{"top_k", std::int64_t{2}}};
  const OpCall forward{"permute", attributes, {x, row_map}, {dy.type}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("permute_gradient", attributes, {dy, slots}, {x.type}));
}

TEST(PermuteGradient, HasPermuteAsItsGradient) {
  const Values dy = random({6, 4}, 0), dx = random({3, 4}, 1);
  const Values row_map = integers({5, 0, 3, 2, 4, 1}), slots = integers({1, 5, 3, 2, 4, 0});
  const spec::Attributes attributes{{"top_k", std::int64_t{2}}};
  const OpCall forward{"permute_gradient", attributes, {dy, slots}, {dx.type}};
  expect_gradient(forward, 0, {dx.data}, gradient("permute", attributes, {dx, row_map}, {dy.type}));
}

TEST(ExchangeRowsGradient, MatchesFiniteDifferences) {
  const Values x = random({5, 4}, 0), dy = random({6, 4}, 1), count = integers({3});
  const auto attributes = [](std::int64_t rows) {
    return spec::Attributes{{"group", "expert"}, {"rows", rows}};
  };
  const OpCall forward{"exchange_rows", attributes(6), {x, count, count}, {dy.type}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("exchange_rows", attributes(5), {dy, count, count}, {x.type}));
}

TEST(ReshapeGradient, MatchesFiniteDifferences) {
  const Values x = random({3, 4}, 0), dy = random({6, 2}, 1);
  const OpCall forward{"reshape", {{"width", std::int64_t{2}}}, {x}, {dy.type}};
  expect_gradient(forward, 0, {dy.data},
                  gradient("reshape", {{"width", std::int64_t{4}}}, {dy}, {x.type}));
}

TEST(JoinHeadsGradient, MatchesFiniteDifferences) {
  const Values shared = random({3, 2}, 0), own = random({3, 12}, 1), dy = random({3, 18}, 2);
  const OpCall forward{"join_heads", {{"num_heads", std::int64_t{3}}}, {shared, own}, {dy.type}};
  const spec::Attributes attributes{{"num_heads", std::int64_t{3}}, {"shared", std::int64_t{2}}};
  for (std::size_t i = 0; i < 2; ++i)
    expect_gradient(forward, i, {dy.data},
                    gradient("join_heads_gradient", attributes, {dy}, {shared.type, own.type}, i));
}

TEST(UnpermuteGradient, MatchesFiniteDifferences) {
  const Values y = random({6, 4}, 0), weights = random({3, 2}, 1), dout = random({3, 4}, 2);
  const Values slots = integers({1, 5, 3, 2, 4, 0});
  const OpCall forward{"unpermute", {}, {y, weights, slots}, {dout.type}};
  for (std::size_t i = 0; i < 2; ++i)
    expect_gradient(
        forward, i, {dout.data},
        gradient("unpermute_gradient", {}, {dout, y, weights, slots}, {y.type, weights.type}, i));
}

TEST(CrossEntropyGradient, MatchesFiniteDifferencesWithIgnoredLabels) {
  const Values logits = random({5, 7}, 0), labels = integers({3, -100, 0, 6, -100});
  const Values factor = scalar(0.37), dloss = scalar(1.9);
  const OpCall forward{"cross_entropy", {}, {logits, labels, factor}, {doubles({}), doubles({5})}};
  const Values lse = run(forward)[1];
  expect_gradient(
      forward, 0, {dloss.data, {}},
      gradient("cross_entropy_gradient", {}, {logits, labels, factor, lse, dloss}, {logits.type}));
}

// A negative weight, and a row that is ignored for its weight.
Values row_weights() { return {doubles({5}), {0.5, 3, -2, 0, 1}}; }

TEST(CrossEntropyGradient, MatchesFiniteDifferencesWithWeights) {
  const Values logits = random({5, 7}, 0), labels = integers({3, -100, 0, 6, 2});
  const Values factor = scalar(0.37), dloss = scalar(1.9), weights = row_weights();
  const OpCall forward{
      "cross_entropy", {}, {logits, labels, factor, weights}, {doubles({}), doubles({5})}};
  const Values lse = run(forward)[1];
  expect_gradient(forward, 0, {dloss.data, {}},
                  gradient("cross_entropy_gradient", {},
                           {logits, labels, factor, lse, dloss, weights}, {logits.type}),
                  true);
}

// Three pairs of completions of other lengths, and prompts.
TEST(PreferenceLoss, WeighsTokensByTheFiniteDifferencesOfItsLoss) {
  const Values completions = integers({-1, 0, 0, 0, -1, 1, 2, 3, 3, -1, 5, 4, 4});
  const Values of_rows = random({13}, 0), reference = random({13}, 1), inverse = scalar(1.0 / 3);
  const std::vector<spec::Attributes> forms{
      {{"beta", 0.7}, {"loss", "sigmoid"}},
      {{"beta", 0.7}, {"loss", "sigmoid"}, {"label_smoothing", 0.2}},
      {{"beta", 1.7}, {"loss", "sigmoid"}, {"length_normalized", true}},
      {{"beta", 0.3}, {"loss", "hinge"}},
      {{"beta", 0.4}, {"loss", "ipo"}}};
  for (const spec::Attributes& form : forms) {
    const OpCall forward{"preference_loss",
                         form,
                         {of_rows, reference, completions, inverse},
                         {doubles({}), doubles({13}), doubles({9})}};
    Values gradient = run(forward)[1];
    for (double& weight : gradient.data) weight = -weight;
    expect_gradient(forward, 0, {{1.0}, {}, {}}, gradient, true);
  }
}

TEST(HeadLossWithGradient, MatchesFiniteDifferencesWithWeights) {
  const Values x = random({5, 4}, 0), weight = random({7, 4}, 1);
  const Values labels = integers({3, -100, 0, 6, 2}), factor = scalar(0.37);
  const OpCall forward{"head_loss", {}, {x, weight, labels, factor, row_weights()}, {doubles({})}};
  const std::vector<Values> got = run({"head_loss_with_gradient",
                                       {{"dloss", 1.9}},
                                       forward.inputs,
                                       {doubles({}), doubles({5, 4}), doubles({7, 4})}});
  EXPECT_EQ(got[0].data, run(forward)[0].data);
  expect_gradient(forward, 0, {{1.9}}, got[1], true);
  expect_gradient(forward, 1, {{1.9}}, got[2]);
}

TEST(HeadLossWithGradient, MatchesFiniteDifferencesWithIgnoredLabels) {
  const Values x = random({5, 4}, 0), weight = random({7, 4}, 1);
  const Values labels = integers({3, -100, 0, 6, -100}), factor = scalar(0.37);
  const OpCall forward{"head_loss", {}, {x, weight, labels, factor}, {doubles({})}};
  const std::vector<Values> got = run({"head_loss_with_gradient",
                                       {{"dloss", 1.9}},
                                       forward.inputs,
                                       {doubles({}), doubles({5, 4}), doubles({7, 4})}});
  EXPECT_EQ(got[0].data, run(forward)[0].data);
  expect_gradient(forward, 0, {{1.9}}, got[1], true);
  expect_gradient(forward, 1, {{1.9}}, got[2]);
}

TEST(LoadBalancingLossGradient, MatchesFiniteDifferencesInEveryLayersSums) {
  const Values counts0{doubles({4}), {3, 1, 0, 2}},
      sums0 = random({4}, 1), counts1{doubles({4}), {0, 4, 1, 1}}, sums1 = random({4}, 3),
      dloss = scalar(1.9);
  const Values scale = scalar(0.4);
  const spec::Attributes attributes{{"top_k", std::int64_t{2}}};
  const OpCall forward{
      "load_balancing_loss", attributes, {scale, counts0, sums0, counts1, sums1}, {doubles({})}};
  const Values got = gradient("load_balancing_loss_gradient", attributes,
                              {dloss, scale, counts0, counts1}, {sums0.type});
  for (const std::size_t layer_sums : {2, 4})
    expect_gradient(forward, layer_sums, {dloss.data}, got);
}

TEST(SequenceBalanceLossGradient, MatchesFiniteDifferencesWithPadding) {
  const Values probabilities = random({7, 4}, 0), dloss = scalar(1.9), scale = scalar(0.5);
  Values experts = integers({0, 1, 0, 2, 3, 1, 0, 3, 2, 0, 1, 2, 3, 0});
  experts.type = tensor_type(DType::kInt32, {7, 2});
  const Values documents = integers({0, 0, 0, -1, 4, 4, -1});
  const OpCall forward{
      "sequence_balance_loss", {}, {scale, probabilities, experts, documents}, {doubles({})}};
  expect_gradient(forward, 1, {dloss.data},
                  gradient("sequence_balance_loss_gradient", {{"num_experts", std::int64_t{4}}},
                           {dloss, scale, experts, documents}, {probabilities.type}));
}

TEST(RouterZLossGradient, MatchesFiniteDifferencesOfDocumentsAlone) {
  const Values logits = random({5, 4}, 0), dloss = scalar(1.9), scale = scalar(0.4);
  const Values documents = integers({0, 0, -1, 3, -1});
  const OpCall forward{"router_z_loss", {}, {logits, documents, scale}, {doubles({})}};
  expect_gradient(
      forward, 0, {dloss.data},
      gradient("router_z_loss_gradient", {}, {logits, dloss, documents, scale}, {logits.type}));
}

TEST(RouterZLossGradient, MatchesFiniteDifferences) {
  const Values logits = random({5, 4}, 0), dloss = scalar(1.9);
  const OpCall forward{"router_z_loss", {}, {logits}, {doubles({})}};
  expect_gradient(forward, 0, {dloss.data},
                  gradient("router_z_loss_gradient", {}, {logits, dloss}, {logits.type}));
}

// The check itself must see a wrong gradient.
TEST(FiniteDifferences, RefuseAGradientThatIsOffByAThousandth) {
  const Values x = random({3, 5}, 0), weight = random({4, 5}, 1), dy = random({3, 4}, 3);
  Values want = gradient("linear_input_gradient", {}, {dy, weight}, {x.type}), got = want;
  for (double& value : got.data) value *= 1.001;
  std::vector<double> tolerances(want.data.size(), difference_tolerance(60.0));
  EXPECT_FALSE(compare(got, want, tolerances));
}

}  // namespace
}  // namespace anabatic::testing
