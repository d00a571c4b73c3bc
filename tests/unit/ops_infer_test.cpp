// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "ops/build.h"
#include "ops/table.h"
#include "spec/rope.h"

namespace anabatic::ops {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TensorType> types(const std::vector<std::string>& texts) {
  std::vector<TensorType> result;
  for (const std::string& text : texts) result.push_back(parse_tensor_type(text));
  return result;
}

std::vector<std::string> infer(std::string_view op, const std::vector<std::string>& inputs,
                               const spec::Attributes& attributes = {}) {
  std::vector<std::string> texts;
  for (const TensorType& type : find_op(op)->infer(types(inputs), attributes))
    texts.push_back(to_string(type));
  return texts;
}

std::string error_of(std::string_view op, const std::vector<std::string>& inputs,
                     const spec::Attributes& attributes = {}) {
  try {
    infer(op, inputs, attributes);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

ir::Cost cost(std::string_view op, const std::vector<std::string>& inputs,
              const spec::Attributes& attributes = {}) {
  const auto in = types(inputs);
  return find_op(op)->cost(in, find_op(op)->infer(in, attributes), attributes);
}

spec::Attributes heads(std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t window = 0) {
  return {
      {"num_heads", num_heads}, {"num_kv_heads", num_kv_heads}, {"scale", 0.5}, {"window", window}};
}

TEST(Infer, LinearMapsWidthsAndKeepsTheDtype) {
  EXPECT_THAT(infer("linear", {"bf16[6,8]", "bf16[5,8]"}), ElementsAre("bf16[6,5]"));
  EXPECT_THAT(infer("linear", {"bf16[6,8]", "bf16[5,8]", "f32[5]"}, {{"output_dtype", "f32"}}),
              ElementsAre("f32[6,5]"));
}

TEST(Infer, LinearNamesWhatDoesNotFit) {
  EXPECT_THAT(error_of("linear", {"f32[6,8]", "f32[5,7]"}),
              HasSubstr("[linear] expected dimension 1 of x to equal dimension 1 of weight, got x "
                        "f32[6,8] and weight f32[5,7]"));
  EXPECT_THAT(error_of("linear", {"f32[6]", "f32[5,6]"}),
              HasSubstr("[linear] expected x to be 2-D, got f32[6]"));
  EXPECT_THAT(error_of("linear", {"f32[6,8]", "bf16[5,8]"}), HasSubstr("to have one dtype"));
  EXPECT_THAT(error_of("linear", {"f32[6,8]", "f32[5,8]", "f32[6]"}),
              HasSubstr("dimension 0 of bias"));
  EXPECT_THAT(error_of("linear", {"i32[6,8]", "f32[5,8]"}),
              HasSubstr("expected x to be f32, bf16, f16 or f64, got i32[6,8]"));
  EXPECT_THAT(error_of("linear", {"f32[6,8]", "f32[5,8]"}, {{"output_dtyp", "f32"}}),
              HasSubstr("unknown attribute 'output_dtyp' = \"f32\"; did you mean 'output_dtype'?"));
  EXPECT_THAT(error_of("linear", {"f32[6,8]", "f32[5,8]"}, {{"output_dtype", "i32"}}),
              HasSubstr("expected 'output_dtype' to be f32, bf16, f16 or f64, got 'i32'"));
}

TEST(Infer, AddTakesTwoOfOneType) {
  EXPECT_THAT(infer("add", {"bf16[8,12]", "bf16[8,12]"}), ElementsAre("bf16[8,12]"));
  EXPECT_THAT(error_of("add", {"f32[8,12]", "f32[12,8]"}),
              HasSubstr("expected a and b to have one type, got a f32[8,12] and b f32[12,8]"));
  EXPECT_THAT(error_of("add", {"f32[8,12]", "bf16[8,12]"}), HasSubstr("to have one type"));
}

TEST(Infer, GroupedLinearWantsOneOffsetMoreThanExperts) {
  EXPECT_THAT(error_of("grouped_linear", {"f32[12,8]", "f32[3,5,8]", "i32[3]"}),
              HasSubstr("expected dimension 0 of offsets to be 4, got i32[3]"));
  EXPECT_THAT(infer("grouped_linear_weight_gradient", {"bf16[12,8]", "bf16[12,5]", "i32[4]"}),
              ElementsAre("f32[3,5,8]"));
}

TEST(Infer, BiasesOfExpertsFitTheirWeights) {
  const spec::Attributes bias{{"bias", true}};
  const std::vector<std::string> product{"bf16[12,8]", "bf16[3,5,8]", "i32[4]"};
  const auto with = [&](std::vector<std::string> inputs, const std::string& last) {
    inputs.push_back(last);
    return inputs;
  };
  EXPECT_THAT(infer("grouped_linear", with(product, "f32[3,5]"), bias), ElementsAre("bf16[12,5]"));
  EXPECT_THAT(error_of("grouped_linear", product, bias),
              HasSubstr("expected at least 4 inputs with 'bias', got 3"));
  EXPECT_THAT(error_of("grouped_linear", with(product, "f32[3,8]"), bias),
              HasSubstr("expected dimension 1 of bias to equal dimension 1 of weight"));
  EXPECT_THAT(error_of("grouped_linear", with(product, "f32[2,5]"), bias),
              HasSubstr("expected dimension 0 of bias to equal dimension 0 of weight"));
  EXPECT_THAT(error_of("grouped_linear", with(product, "bf16[3,5]"), bias),
              HasSubstr("expected bias to be f32"));
  const spec::Attributes activated{{"activation", "swiglu"}, {"bias", true}};
  EXPECT_THAT(error_of("grouped_linear_activation",
                       {"f32[12,8]", "f32[3,5,8]", "f32[3,5,8]", "i32[4]", "f32[3,5]"}, activated),
              HasSubstr("expected at least 6 inputs with 'bias', got 5"));
  EXPECT_THAT(error_of("linear_activation", {"f32[12,8]", "f32[5,8]", "f32[5,8]"}, activated),
              HasSubstr("unknown attribute 'bias'"));
  EXPECT_THAT(error_of("expert_bias", {"f32[6,8]", "f32[3,8]", "f32[6,2]", "i32[6,3]"}),
              HasSubstr("expected experts and weights to have one shape"));
}

TEST(Infer, AttentionTakesHeadsApart) {
  EXPECT_THAT(infer("attention", {"bf16[6,32]", "bf16[9,16]", "bf16[9,10]", "i32[6]", "i32[6]"},
                    heads(4, 2)),
              ElementsAre("bf16[6,20]", "f32[6,4]"));
}

TEST(Infer, AttentionNamesWhatDoesNotFit) {
  const std::vector<std::string> good{"f32[6,32]", "f32[9,16]", "f32[9,16]", "i32[6]", "i32[6]"};
  EXPECT_THAT(error_of("attention", good, heads(4, 3)),
              HasSubstr("num_heads to be a multiple of num_kv_heads, got 4 and 3"));
  EXPECT_THAT(error_of("attention", good, heads(8, 2)), HasSubstr("one head size of q and k"));
  EXPECT_THAT(error_of("attention", good, heads(4, 2, -1)), HasSubstr("'window' >= 0, got -1"));
  EXPECT_THAT(error_of("attention", good, heads(0, 2)), HasSubstr("'num_heads' > 0, got 0"));
  EXPECT_THAT(error_of("attention", {"f32[6,30]", "f32[9,16]", "f32[9,16]", "i32[6]", "i32[6]"},
                       heads(4, 2)),
              HasSubstr("dimension 1 of q to be a multiple of 4 (num_heads)"));
  EXPECT_THAT(error_of("attention", {"f32[6,32]", "f32[9,16]", "f32[8,16]", "i32[6]", "i32[6]"},
                       heads(4, 2)),
              HasSubstr("dimension 0 of k to equal dimension 0 of v"));
  std::vector<std::string> with_sinks = good;
  with_sinks.push_back("f32[3]");
  EXPECT_THAT(error_of("attention", with_sinks, heads(4, 2)),
              HasSubstr("expected dimension 0 of sinks to be 4, got f32[3]"));
  with_sinks.back() = "bf16[4]";
  EXPECT_THAT(error_of("attention", with_sinks, heads(4, 2)), HasSubstr("sinks"));
}

TEST(Infer, AttentionTakesListsOfKeyBlocks) {
  std::vector<std::string> inputs{"bf16[6,32]", "bf16[9,16]", "bf16[9,10]", "i32[6]",
                                  "i32[6]",     "i32[2,4]",   "i32[9]"};
  spec::Attributes attributes = heads(4, 2);
  EXPECT_THAT(error_of("attention", inputs, attributes),
              HasSubstr("expected 'block_size' with lists of key blocks, got none"));
  attributes["block_size"] = 3;
  EXPECT_THAT(infer("attention", inputs, attributes), ElementsAre("bf16[6,20]", "f32[6,4]"));
  attributes["block_density"] = 1.5;
  EXPECT_THAT(error_of("attention", inputs, attributes), HasSubstr("'block_density' in (0, 1]"));
  attributes.erase("block_density");
  attributes["block_size"] = 0;
  EXPECT_THAT(error_of("attention", inputs, attributes), HasSubstr("'block_size' > 0, got 0"));
  attributes["block_size"] = 3;
  inputs[5] = "i32[3,4]";
  EXPECT_THAT(error_of("attention", inputs, attributes),
              HasSubstr("num_heads to be a multiple of dimension 0 of block_offsets, got 4 and 3"));
  inputs.resize(5);
  EXPECT_THAT(error_of("attention", inputs, attributes),
              HasSubstr("block_offsets and block_ids as the last inputs with 'block_size', got 0"));
}

TEST(Infer, AttentionGradientGivesDeltaWhereItIsAskedFor) {
  const std::vector<std::string> inputs{"bf16[6,32]", "bf16[9,16]", "bf16[9,10]", "i32[6]",
                                        "i32[6]",     "bf16[6,20]", "f32[6,4]",   "bf16[6,20]"};
  spec::Attributes attributes = heads(4, 2);
  EXPECT_EQ(infer("attention_gradient", inputs, attributes).size(), 3u);
  attributes["with_delta"] = true;
  EXPECT_THAT(infer("attention_gradient", inputs, attributes),
              ElementsAre("bf16[6,32]", "bf16[9,16]", "bf16[9,10]", "f32[6,4]"));
}

TEST(Infer, SinksGradientNamesWhatDoesNotFit) {
  EXPECT_THAT(error_of("sinks_gradient", {"f32[6,4]", "f32[5,4]", "f32[4]"}), HasSubstr("lse"));
  EXPECT_THAT(error_of("sinks_gradient", {"f32[6,4]", "f32[6,4]", "f32[3]"}),
              HasSubstr("dimension 0 of sinks to equal dimension 1 of delta"));
}

TEST(Infer, RmsNormAcceptsRunsOfTheWeightsWidth) {
  EXPECT_THAT(infer("rms_norm", {"bf16[6,8]", "f32[4]"}, {{"epsilon", 1e-6}}),
              ElementsAre("bf16[6,8]"));
  EXPECT_THAT(error_of("rms_norm", {"f32[6,8]", "f32[3]"}, {{"epsilon", 1e-6}}),
              HasSubstr("dimension 1 of x to be a multiple of 3 (the weight's width)"));
  EXPECT_THAT(error_of("rms_norm", {"f32[6,8]", "f32[0]"}, {{"epsilon", 1e-6}}),
              HasSubstr("multiple of 0"));
  EXPECT_THAT(error_of("rms_norm", {"f32[6,8]", "f32[8]"}, {{"epsilon", -1.0}}),
              HasSubstr("'epsilon' >= 0"));
}

TEST(Infer, LayerNormExpectsAWeightAndABiasOfEachColumn) {
  EXPECT_THAT(infer("layer_norm", {"bf16[6,8]", "f32[8]", "f32[8]"}, {{"epsilon", 1e-6}}),
              ElementsAre("bf16[6,8]"));
  EXPECT_THAT(error_of("layer_norm", {"f32[6,8]", "f32[4]", "f32[8]"}, {{"epsilon", 1e-6}}),
              HasSubstr("weight"));
  EXPECT_THAT(error_of("layer_norm", {"f32[6,8]", "f32[8]", "f32[4]"}, {{"epsilon", 1e-6}}),
              HasSubstr("bias"));
  EXPECT_THAT(error_of("layer_norm", {"f32[6,8]", "bf16[8]", "f32[8]"}, {{"epsilon", 1e-6}}),
              HasSubstr("weight"));
  EXPECT_THAT(error_of("layer_norm", {"f32[6,8]", "f32[8]", "f32[8]"}, {{"epsilon", -1.0}}),
              HasSubstr("'epsilon' >= 0"));
  EXPECT_THAT(infer("layer_norm_weight_gradient", {"bf16[6,8]", "bf16[6,8]"}, {{"epsilon", 1e-6}}),
              ElementsAre("f32[8]", "f32[8]"));
}

TEST(Infer, RopeRefusesATableWiderThanAHead) {
  const spec::Attributes attributes{{"head_dim", 8}, {"inverse", false}};
  EXPECT_THAT(infer("rope", {"bf16[6,16]", "f32[6,4]"}, attributes), ElementsAre("bf16[6,16]"));
  EXPECT_THAT(error_of("rope", {"f32[6,16]", "f32[6,10]"}, attributes),
              HasSubstr("at most 8 columns"));
  EXPECT_THAT(error_of("rope", {"f32[6,16]", "f32[6,3]"}, attributes), HasSubstr("multiple of 2"));
  EXPECT_THAT(error_of("rope_table", {"i32[6]"}, spec::to_attributes({.rotary_dim = 3})),
              HasSubstr("even rotary_dim"));
}

TEST(Infer, RouterGivesWeightsExpertsAndCounts) {
  EXPECT_THAT(infer("router", {"f32[6,3]"}, {{"normalize", true}, {"top_k", 2}}),
              ElementsAre("f32[6,2]", "i32[6,2]", "f32[6,3]", "f32[3]", "f32[3]"));
  EXPECT_THAT(error_of("router", {"f32[6,3]"}, {{"normalize", true}, {"top_k", 4}}),
              HasSubstr("top_k at most the number of experts, got 4 of f32[6,3]"));
  EXPECT_THAT(error_of("router", {"f32[6,3]", "i32[5]"}, {{"normalize", true}, {"top_k", 2}}),
              HasSubstr("dimension 0 of documents"));
  EXPECT_THAT(error_of("router", {"bf16[6,3]"}, {{"normalize", true}, {"top_k", 2}}),
              HasSubstr("expected logits to be f32, got bf16[6,3]"));
  EXPECT_THAT(error_of("router", {"f32[6,3]"}, {{"normalize", 1}, {"top_k", 2}}),
              HasSubstr("expected a bool for 'normalize', got 1"));
}

TEST(Infer, RouterRefusesFormsThatChooseTooFew) {
  const auto error = [&](spec::Attributes more, std::vector<std::string> inputs = {"f32[6,12]"}) {
    more.merge(spec::Attributes{{"normalize", true}, {"top_k", std::int64_t{4}}});
    return error_of("router", inputs, more);
  };
  EXPECT_THAT(error({{"groups", 5}}), HasSubstr("groups that divide 12 experts, got 5"));
  EXPECT_THAT(error({{"groups", 4}, {"group_top_k", 5}}), HasSubstr("group_top_k of 1 to 4"));
  EXPECT_THAT(error({{"groups", 4}, {"group_top_k", 1}}),
              HasSubstr("top_k at most the 3 experts of 1 groups, got 4"));
  EXPECT_THAT(error({{"groups", 12}, {"group_top_k", 4}, {"group_score", "top2"}}),
              HasSubstr("at least 2 experts for top2, got 1"));
  EXPECT_THAT(error({{"score", "tanh"}}),
              HasSubstr("'score' to be softmax or sigmoid, got 'tanh'"));
  EXPECT_THAT(error({{"barred", "none"}}), HasSubstr("'barred' to be excluded or zero"));
  EXPECT_THAT(error({{"scale", 0.0}}), HasSubstr("scale above 0, got 0"));
  EXPECT_THAT(error({{"epsilon", -1.0}}), HasSubstr("epsilon of at least 0, got -1"));
  EXPECT_THAT(error({{"normalize", false}, {"floor", 0.5}}),
              HasSubstr("normalize true with floor, got false"));
  EXPECT_THAT(error({{"bias", true}}), HasSubstr("expected 2 inputs or documents too, got 1"));
  EXPECT_THAT(error({{"bias", true}}, {"f32[6,12]", "f32[11]"}), HasSubstr("of bias"));
  EXPECT_THAT(error({{"bias", true}}, {"f32[6,12]", "f32[12]", "i32[5]"}),
              HasSubstr("dimension 0 of documents"));
  EXPECT_THAT(error({}, {"f32[6,12]", "i32[6]", "i32[6]"}),
              HasSubstr("expected 1 inputs or documents too, got 3"));
}

TEST(Infer, PermutationsCountRowsByTopK) {
  EXPECT_THAT(infer("permute", {"bf16[6,4]", "i32[12]"}, {{"top_k", 2}}),
              ElementsAre("bf16[12,4]"));
  EXPECT_THAT(error_of("permute", {"f32[6,4]", "i32[11]"}, {{"top_k", 2}}),
              HasSubstr("dimension 0 of row_map to be 12"));
  EXPECT_THAT(infer("dispatch_map", {"i32[2,7]"}, {{"member", 1}, {"rows", 20}, {"expected", 9}}),
              ElementsAre("i32[20]", "i32[20]", "i32[4]", "i32[2]", "i32[2]", "i32[1]"));
  EXPECT_THAT(
      error_of("dispatch_map", {"i32[2,8]"}, {{"member", 1}, {"rows", 20}, {"expected", 9}}),
      HasSubstr("experts that divide among the ranks, got i32[2,8]"));
  EXPECT_THAT(
      error_of("dispatch_map", {"i32[2,7]"}, {{"member", 2}, {"rows", 20}, {"expected", 9}}),
      HasSubstr("a member below 2, got 2"));
  EXPECT_THAT(infer("permute_gradient", {"bf16[12,4]", "i32[12]"}, {{"top_k", 2}}),
              ElementsAre("bf16[6,4]"));
  EXPECT_THAT(error_of("permute_gradient", {"f32[12,4]", "i32[12]"}, {{"top_k", 5}}),
              HasSubstr("multiple of 5 (top_k)"));
  EXPECT_THAT(infer("unpermute", {"bf16[12,4]", "f32[6,2]", "i32[12]"}), ElementsAre("bf16[6,4]"));
  EXPECT_THAT(error_of("unpermute", {"f32[11,4]", "f32[6,2]", "i32[11]"}),
              HasSubstr("dimension 0 of y to be 12"));
}

TEST(Infer, LossesAreScalars) {
  EXPECT_THAT(infer("cross_entropy", {"bf16[6,11]", "i32[6]", "f32[]"}),
              ElementsAre("f32[]", "f32[6]"));
  EXPECT_THAT(infer("cross_entropy_gradient", {"f32[6,11]", "i32[6]", "f32[]", "f32[6]", "f32[]"},
                    {{"dtype", "bf16"}}),
              ElementsAre("bf16[6,11]"));
  EXPECT_THAT(error_of("cross_entropy", {"f32[6,11]", "i32[5]", "f32[]"}),
              HasSubstr("dimension 0 of labels"));
  EXPECT_THAT(error_of("cross_entropy", {"f32[6,11]", "i32[6]", "f32[]", "f32[5]"}),
              HasSubstr("dimension 0 of weights"));
  EXPECT_THAT(
      error_of("cross_entropy_gradient",
               {"f32[6,11]", "i32[6]", "f32[]", "f32[6]", "f32[]", "i32[6]"}, {{"dtype", "f32"}}),
      HasSubstr("weights"));
  EXPECT_THAT(error_of("head_loss", {"f32[6,8]", "f32[11,8]", "i32[6]", "f32[]", "f32[7]"}),
              HasSubstr("dimension 0 of weights"));
  EXPECT_THAT(infer("head_loss_with_gradient", {"bf16[6,8]", "bf16[11,8]", "i32[6]", "f32[]"},
                    {{"dloss", 1.0}}),
              ElementsAre("f32[]", "bf16[6,8]", "f32[11,8]"));
  EXPECT_THAT(infer("head_log_probabilities", {"bf16[6,8]", "bf16[11,8]", "i32[6]"}),
              ElementsAre("f32[6]", "f32[6]"));
  EXPECT_THAT(error_of("label_log_probabilities", {"f32[6,11]", "i32[5]"}), HasSubstr("labels"));
  EXPECT_THAT(error_of("head_loss", {"f32[6,8]", "f32[11,7]", "i32[6]", "f32[]"}),
              HasSubstr("dimension 1 of"));
  EXPECT_THAT(
      error_of("load_balancing_loss", {"f32[]", "f32[4]", "f32[4]", "f32[4]"}, {{"top_k", 2}}),
      HasSubstr("pairs of counts and sums after the scale, got 3"));
  EXPECT_THAT(infer("sequence_balance_loss", {"f32[]", "f32[6,3]", "i32[6,2]", "i32[6]"}),
              ElementsAre("f32[]"));
  EXPECT_THAT(error_of("sequence_balance_loss", {"f32[]", "f32[6,3]", "i32[6,2]", "i32[5]"}),
              HasSubstr("dimension 0 of documents"));
  EXPECT_THAT(error_of("router_z_loss", {"f32[6,3]", "i32[6]"}),
              HasSubstr("documents and scale, got one of them"));
}

TEST(Infer, StatesKeepTheirTypes) {
  EXPECT_THAT(error_of("accumulate", {"f32[3,4]", "bf16[3,4]"}),
              HasSubstr("expected contribution to be f32"));
  EXPECT_THAT(error_of("accumulate", {"f32[3,4]", "f32[4,3]"}), HasSubstr("to have one shape"));
  EXPECT_THAT(error_of("optimizer_step",
                       {"f32[3]", "f32[3]", "f32[3]", "f32[4]", "f32[]", "f32[]", "i32[]"},
                       {{"rule", "adamw"},
                        {"beta1", 0.9},
                        {"beta2", 0.95},
                        {"epsilon", 1e-8},
                        {"weight_decay", 0.1}}),
              HasSubstr("second_moment"));
  EXPECT_THAT(error_of("optimizer_step",
                       {"f32[3]", "f32[3]", "f32[3]", "f32[3]", "f32[]", "f32[]", "i32[]"},
                       {{"rule", "adamw"},
                        {"beta1", 1.0},
                        {"beta2", 0.95},
                        {"epsilon", 1e-8},
                        {"weight_decay", 0.1}}),
              HasSubstr("'beta1' in [0, 1), got 1"));
  const spec::Attributes attributes{
      {"rule", "adamw"}, {"beta1", 0.9}, {"beta2", 0.95}, {"epsilon", 1e-8}, {"weight_decay", 0.1}};
  const auto with_moments = [&](const std::string& first, const std::string& second) {
    return std::vector<std::string>{"f32[20,7]", "f32[20,7]", first,  second,
                                    "f32[]",     "f32[]",     "i32[]"};
  };
  const std::string first = "dynamic8_f32_16x16[20,7]", second = "udynamic8_f32_16x16[20,7]";
  EXPECT_THAT(infer("optimizer_step", with_moments(first, second), attributes),
              ElementsAre("f32[20,7]", first, second));
  EXPECT_THAT(error_of("optimizer_step", with_moments(first, first), attributes),
              HasSubstr("expected second_moment to be " + second + ", got " + first));
  EXPECT_THAT(
      error_of("optimizer_step", with_moments("dynamic8_f32_8x16[20,7]", second), attributes),
      HasSubstr("expected first_moment to be " + first + ", got dynamic8_f32_8x16[20,7]"));
  EXPECT_THAT(error_of("optimizer_step", with_moments(first, "f32[20,7]"), attributes),
              HasSubstr("expected second_moment to be " + second + ", got f32[20,7]"));
  std::vector<std::string> surplus = with_moments(first, second);
  surplus.push_back("f32[2,1]");
  EXPECT_THAT(error_of("optimizer_step", surplus, attributes), HasSubstr("'packs'"));
  EXPECT_THAT(error_of("cache_write", {"f32[4,4]", "f32[3,4]", "i32[1]"}), HasSubstr("places"));
  EXPECT_THAT(error_of("clip_factor", {"f32[]"}, {{"max_norm", -1.0}}),
              HasSubstr("'max_norm' >= 0"));
}

TEST(Infer, OptimizerStepRefusesFormsThatNoKernelHas) {
  const std::vector<std::string> whole{"f32[20,7]@panels",
                                       "f32[20,7]@panels",
                                       "f32[20,7]@panels",
                                       "f32[20,7]@panels",
                                       "f32[]",
                                       "f32[]",
                                       "i32[]"};
  std::vector<std::string> halves = whole;
  halves.insert(halves.begin(), "bf16[20,7]@panels");
  halves[1] = "u16[20,7]@panels";
  const auto with = [](spec::Attributes form) {
    form.insert({{"rule", "adamw"},
                 {"beta1", 0.9},
                 {"beta2", 0.95},
                 {"epsilon", 1e-8},
                 {"weight_decay", 0.1}});
    return form;
  };
  const auto error = [&](const std::vector<std::string>& inputs, const spec::Attributes& form) {
    return error_of("optimizer_step", inputs, with(form));
  };
  EXPECT_THAT(error(halves, {}), HasSubstr("expected 'split'"));
  EXPECT_THAT(error(whole, {{"split", true}}), HasSubstr("expected at least 8 inputs, got 7"));
  EXPECT_THAT(error(halves, {{"split", true}, {"packs", "both"}}),
              HasSubstr("expected 'packs' transposed"));
  EXPECT_THAT(error(whole, {{"packs", "both"}}), HasSubstr("expected 'dtype'"));
  EXPECT_THAT(error(whole, {{"dtype", "bf16"}}), HasSubstr("expected 'packs'"));
  std::vector<std::string> slice = whole;
  slice.emplace_back("bf16[20,7]@panels_transposed");
  EXPECT_THAT(error(slice, {{"packs", "transposed"}, {"dtype", "bf16"}, {"first_row", 0}}),
              HasSubstr("expected no 'first_row'"));
  EXPECT_THAT(error(slice, {}), HasSubstr("'packs' and 'first_row'"));
  std::vector<std::string> rows = whole;
  for (std::size_t i = 0; i < 4; ++i) rows[i] = "f32[20,7]";
  EXPECT_THAT(error(rows, {{"packs", "transposed"}, {"dtype", "bf16"}}),
              HasSubstr("expected parameter of layout panels"));
  EXPECT_THAT(error(whole, {{"packs", "both"}, {"dtype", "i8_bf16_128x128"}}),
              HasSubstr("expected 'packs' both of an f32 parameter in rows"));
}

TEST(Infer, CastAndFillReadTypesFromAttributes) {
  EXPECT_THAT(infer("cast", {"f32[3]"}, {{"dtype", "bf16"}, {"rounding", "half_away"}}),
              ElementsAre("bf16[3]"));
  EXPECT_THAT(error_of("cast", {"f32[3]"}, {{"dtype", "bf16"}, {"rounding", "up"}}),
              HasSubstr("rounding 'even' or 'half_away', got 'up'"));
  EXPECT_THAT(infer("fill", {}, {{"type", "i32[3,4]"}, {"value", 0.0}}), ElementsAre("i32[3,4]"));
  EXPECT_THAT(error_of("fill", {}, {{"type", "f32[3"}, {"value", 0.0}}), HasSubstr("f32[3"));
}

TEST(Cost, OfProductsIsTwoFlopsAMultiplyAdd) {
  EXPECT_EQ(cost("linear", {"bf16[6,8]", "bf16[5,8]"}).flops, 2 * 6 * 8 * 5);
  EXPECT_EQ(cost("linear", {"bf16[6,8]", "bf16[5,8]"}).bytes_read, 2 * (6 * 8 + 5 * 8));
  EXPECT_EQ(cost("linear_weight_gradient", {"bf16[6,8]", "bf16[6,5]"}).flops, 2 * 6 * 8 * 5);
  EXPECT_EQ(cost("linear_weight_gradient", {"bf16[6,8]", "bf16[6,5]"}).bytes_written, 4 * 5 * 8);
  EXPECT_EQ(cost("grouped_linear", {"f32[12,8]", "f32[3,5,8]", "i32[4]"}).flops, 2 * 12 * 8 * 5);
}

TEST(Cost, OfAttentionCountsTheCausalHalfAndTheWindow) {
  const std::vector<std::string> square{"f32[6,8]", "f32[6,8]", "f32[6,8]", "i32[6]", "i32[6]"};
  EXPECT_EQ(cost("attention", square, heads(2, 2)).flops, 2 * (8 + 8) * (6 * 7 / 2));
  EXPECT_EQ(cost("attention", square, heads(2, 2, 2)).flops, 2 * (8 + 8) * (6 * 2));
  const std::vector<std::string> decode{"f32[1,8]", "f32[9,8]", "f32[9,8]", "i32[1]", "i32[1]"};
  EXPECT_EQ(cost("attention", decode, heads(2, 2)).flops, 2 * (8 + 8) * 9);
}

TEST(Cost, OfListedBlocksIsTheirShareOfThePairs) {
  const std::vector<std::string> inputs{"f32[6,8]", "f32[6,8]", "f32[6,8]", "i32[6]",
                                        "i32[6]",   "i32[1,4]", "i32[9]"};
  spec::Attributes attributes = heads(2, 2);
  attributes["block_size"] = 2;
  EXPECT_EQ(cost("attention", inputs, attributes).flops, 2 * (8 + 8) * 21);
  attributes["block_density"] = 0.5;
  EXPECT_EQ(cost("attention", inputs, attributes).flops, 2 * (8 + 8) * 10);
}

TEST(Cost, OfSinksIsWhatTheyReadAndWrite) {
  std::vector<std::string> inputs{"f32[6,8]", "f32[6,8]", "f32[6,8]", "i32[6]", "i32[6]"};
  const ir::Cost without = cost("attention", inputs, heads(2, 2));
  inputs.push_back("f32[2]");
  EXPECT_EQ(cost("attention", inputs, heads(2, 2)).bytes_read, without.bytes_read + 2 * 4);
  EXPECT_EQ(cost("attention", inputs, heads(2, 2)).flops, without.flops);
  const ir::Cost gradient = cost("sinks_gradient", {"f32[6,2]", "f32[6,2]", "f32[2]"});
  EXPECT_EQ(gradient.bytes_read, 4 * (2 * 6 * 2 + 2));
  EXPECT_EQ(gradient.bytes_written, 4 * 2);
  EXPECT_EQ(gradient.flops, 4 * 6 * 2);
}

TEST(Cost, OfEmbeddingReadsOnlyTheGatheredRows) {
  EXPECT_EQ(cost("embedding", {"bf16[1000,4]", "i32[6]"}).bytes_read, 6 * 4 * 2 + 6 * 4);
}

TEST(Cost, SaturatesInsteadOfOverflowing) {
  EXPECT_EQ(product({std::int64_t{1} << 40, std::int64_t{1} << 40}), std::int64_t{1} << 62);
  EXPECT_EQ(product({std::int64_t{1} << 40, 0}), 0);
}

}  // namespace
}  // namespace anabatic::ops
