// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ops/table.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::ElementsAre;

const ir::Node* first_node(const ir::Graph& graph, std::string_view op) {
  for (const ir::Node& node : graph.nodes)
    if (node.op->name == op) return &node;
  return nullptr;
}

std::map<std::string, int> count_ops(const ir::Graph& graph) {
  std::map<std::string, int> counts;
  for (const ir::Node& node : graph.nodes) ++counts[std::string(node.op->name)];
  return counts;
}

std::vector<std::string> names_of(const ir::Graph& graph, const std::vector<ir::ValueId>& values) {
  std::vector<std::string> names;
  for (const ir::ValueId value : values) names.emplace_back(text(graph.value(value).name));
  return names;
}

const std::vector<std::string>& variants() {
  static const std::vector<std::string> list{
      small_json("flex_olmo", R"("num_key_value_heads": 3, "norm_topk_prob": true)"),
      small_json("gpt_oss", R"("attention_bias": false, "sliding_window": 2)"),
      small_json("granitemoe", R"("attention_multiplier": 0.5, "residual_multiplier": 0.25)"),
      small_json("granitemoeshared", R"("embedding_multiplier": 2, "logits_scaling": 4,
                                        "tie_word_embeddings": true)"),
      small_json("olmo2", R"("attention_bias": true)"),
      small_json("olmoe", R"("clip_qkv": 0.5, "attention_bias": true)"),
      small_json("llama"),
      small_json("llama", R"("attention_bias": true, "mlp_bias": true, "head_dim": 6)"),
      small_json("llama", R"("tie_word_embeddings": true, "num_key_value_heads": 6)"),
      small_json("mistral"),
      small_json("mistral", R"("sliding_window": 3)"),
      small_json("mistral", R"("sliding_window": null, "num_key_value_heads": 1)"),
      small_json("qwen2"),
      small_json("qwen3"),
      small_json("qwen3", R"("attention_bias": true, "tie_word_embeddings": true)"),
      small_json("qwen3", R"("use_sliding_window": true, "sliding_window": 2,
                             "max_window_layers": 1)"),
      small_json("mixtral"),
      small_json("mixtral", R"("sliding_window": 4, "tie_word_embeddings": true)"),
      small_json("mixtral", R"("num_local_experts": 1, "num_experts_per_tok": 1)"),
      small_json("dots1"),
      small_json("ernie4_5_moe"),
      small_json("glm4_moe_lite", R"("mlp_layer_types": ["sparse", "dense", "sparse"])"),
      small_json("pangu_ultra_moe"),
      small_json("ernie4_5_moe", R"("moe_num_shared_experts": 0, "moe_layer_interval": 2)"),
      small_json("ernie4_5_moe", R"("use_bias": true)"),
      small_json("gpt2"),
      small_json("gpt2", R"("tie_word_embeddings": false, "activation_function": "relu2")"),
      small_json("hunyuan_v1_moe"),
      small_json("dots1", R"("n_group": 3, "topk_group": 2, "first_k_dense_replace": 1,
                             "norm_topk_prob": true, "attention_bias": true)"),
      small_json("qwen2_moe"),
      small_json("qwen2_moe", R"("qkv_bias": false, "norm_topk_prob": true, "mlp_only_layers": [1],
                                 "use_sliding_window": true, "sliding_window": 3)"),
      small_json("qwen3_moe"),
      small_json("qwen3_moe", R"("decoder_sparse_step": 2, "norm_topk_prob": true)"),
      small_json("qwen3_moe", R"("mlp_only_layers": [1], "attention_bias": true,
                                 "tie_word_embeddings": true)")};
  return list;
}

TEST(BuildGraph, VerifiesForEveryFamilyAndVariant) {
  for (const std::string& json : variants()) {
    const ModelConfig config = config_from(json);
    ir::verify(build_graph(
        config, {.num_tokens = 7, .with_logits = true, .balance_coef = 0.5, .z_loss_coef = 0.25}));
    ir::verify(build_graph(config, {.num_tokens = 5, .with_loss = false, .with_logits = true}));
    ir::verify(build_graph(
        config, {.num_tokens = 2, .with_loss = false, .with_logits = true, .cache_capacity = 9}));
    ir::verify(build_graph(config, {.num_tokens = 2,
                                    .with_loss = false,
                                    .with_log_probabilities = true,
                                    .cache_capacity = 9}));
  }
}

TEST(BuildGraph, TextFormRoundTrips) {
  for (const std::string& json : variants()) {
    const ir::Graph graph = build_graph(config_from(json), {.num_tokens = 3});
    const std::string printed = ir::print(graph);
    EXPECT_EQ(ir::print(ir::parse(printed, ops::find_op)), printed);
  }
}

TEST(BuildGraph, HasOneStatePerParameterWithItsShape) {
  for (const std::string& json : variants()) {
    const ModelConfig config = config_from(json);
    const ir::Graph graph = build_graph(config, {.num_tokens = 3});
    const std::deque<Parameter> list = declare(config.spec).parameters;
    ASSERT_EQ(graph.states.size(), list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      EXPECT_EQ(text(graph.states[i].name), list[i].name());
      EXPECT_EQ(graph.value(graph.states[i].before).type,
                tensor_type(DType::kFloat32, list[i].shape));
    }
  }
}

TEST(BuildGraph, EveryParameterIsRead) {
  for (const std::string& json : variants()) {
    const ir::Graph graph = build_graph(config_from(json), {.num_tokens = 3});
    std::set<ir::ValueId> read;
    for (const ir::Node& node : graph.nodes) read.insert(node.inputs.begin(), node.inputs.end());
    for (const ir::State& state : graph.states)
      EXPECT_EQ(read.count(state.before), 1u) << text(state.name);
  }
}

TEST(BuildGraph, NamesInputsAndOutputs) {
  const ModelConfig config =
      config_from(small_json("qwen3_moe", R"("decoder_sparse_step": 2, "num_hidden_layers": 4)"));
  const ir::Graph graph = build_graph(
      config, {.num_tokens = 3, .with_logits = true, .balance_coef = 1, .z_loss_coef = 1});
  EXPECT_THAT(names_of(graph, graph.batch),
              ElementsAre("tokens", "positions", "key_begin", "key_end", "documents", "labels"));
  EXPECT_THAT(names_of(graph, graph.step_inputs),
              ElementsAre("inverse_tokens", "inverse_real_tokens"));
  EXPECT_THAT(
      names_of(graph, graph.outputs),
      ElementsAre("loss", "aux_loss", "z_loss", "expert_load.1", "expert_load.3", "logits"));
  EXPECT_TRUE(graph.objective.has_value());
}

// No family needed: the block takes any form.
ModelConfig with_router(const Router& router) {
  ModelConfig config = config_from(small_json("qwen2_moe"));
  for (LayerSpec& layer : config.spec.layers) {
    Moe& moe = std::get<Moe>(layer.feed_forward);
    moe.router = router;
    moe.shared->is_gated = false;
  }
  return config;
}

TEST(BuildGraph, GivesRoutersTheirFormAndACorrectionBiasThatIsNotTrained) {
  const Router router{.form = {.score = spec::RouterScore::kSigmoid,
                               .has_bias = true,
                               .groups = 2,
                               .group_top_k = 1,
                               .group_score = spec::GroupScore::kTop2,
                               .normalizes = true,
                               .epsilon = 1e-20,
                               .scale = 2.5},
                      .bias = true};
  const ModelConfig config = with_router(router);
  for (const bool with_loss : {true, false}) {
    const ir::Graph graph = build_graph(
        config, {.num_tokens = 3, .with_loss = with_loss, .with_logits = true, .balance_coef = 1});
    ir::verify(graph);
    const ir::Node& node = *first_node(graph, "router");
    spec::RouterForm form = router.form;
    form.top_k = 3;
    EXPECT_EQ(spec::router_of(node.attributes), form);
    EXPECT_EQ(node.inputs.size(), with_loss ? 3u : 2u);
    const ir::State* bias = graph.find_state(intern("layers.0.router.correction_bias"));
    ASSERT_NE(bias, nullptr);
    EXPECT_EQ(node.inputs[form.bias()], bias->before);
    EXPECT_FALSE(bias->is_trainable);
    EXPECT_TRUE(graph.find_state(intern("layers.0.router.bias"))->is_trainable);
    EXPECT_EQ(count_ops(graph).count("gate_rows"), 0u);
  }
}

// Which counts the top-k of softmax(logits), whatever was chosen.
TEST(BuildGraph, AddsTransformersLoadWhereRoutersChooseOtherwise) {
  const Router router{.form = {.score = spec::RouterScore::kSigmoid, .has_bias = true}};
  for (const auto kind : {BalanceLoss::kLayer, BalanceLoss::kAllLayers}) {
    const ir::Graph graph = build_graph(with_router(router),
                                        {.num_tokens = 3, .balance_loss = kind, .balance_coef = 1});
    ir::verify(graph);
    const bool is_transformers = kind == BalanceLoss::kAllLayers;
    EXPECT_EQ(count_ops(graph).at("router"), is_transformers ? 6 : 3);
    const ir::Node& loss = *first_node(graph, "load_balancing_loss");
    const ir::Node& counted = graph.node(graph.value(loss.inputs[1]).producer);
    EXPECT_EQ(spec::router_of(counted.attributes).chooses_by_logits(), is_transformers);
  }
}

TEST(BuildGraph, ComputesAnglesOnce) {
  const auto counts = count_ops(build_graph(config_from(small_json("llama")), {.num_tokens = 3}));
  EXPECT_EQ(counts.at("rope_table"), 1);
  EXPECT_EQ(counts.at("rope"), 6);
}

TEST(BuildGraph, AddsRowsOfPositionsWhereNoHeadRotates) {
  const ir::Graph graph = build_graph(config_from(small_json("gpt2")), {.num_tokens = 3});
  const auto counts = count_ops(graph);
  EXPECT_EQ(counts.at("embedding"), 2);
  EXPECT_EQ(counts.at("layer_norm"), 7);
  for (const char* absent : {"rope", "rope_table", "rms_norm"})
    EXPECT_FALSE(counts.contains(absent));
  const ir::State* table = graph.find_state(intern("position_embedding.weight"));
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(graph.value(table->before).type, tensor_type(DType::kFloat32, {32, 12}));
  const ir::Node* norm = first_node(graph, "layer_norm");
  EXPECT_EQ(norm->inputs[2], graph.find_state(intern("layers.0.attention_norm.bias"))->before);
}

TEST(BuildGraph, ActivatesOneProductWithoutAGate) {
  const ir::Graph graph = build_graph(config_from(small_json("gpt2")), {.num_tokens = 3});
  EXPECT_EQ(first_node(graph, "activation")->inputs.size(), 1u);
  EXPECT_EQ(graph.find_state(intern("layers.0.mlp.gate.weight")), nullptr);
  EXPECT_NE(graph.find_state(intern("layers.0.mlp.up.bias")), nullptr);
}

TEST(BuildGraph, StartsTheMatricesThatEndABlockSmaller) {
  const ir::Graph graph = build_graph(config_from(small_json("gpt2")), {.num_tokens = 3});
  const auto deviation = [&](const char* name) {
    return graph.find_state(intern(name))->init.deviation;
  };
  for (const char* name : {"layers.1.attention.o.weight", "layers.1.mlp.down.weight"})
    EXPECT_EQ(deviation(name), 0.02 / std::sqrt(6.0));
  for (const char* name : {"layers.1.attention.q.weight", "layers.1.mlp.up.weight",
                           "embedding.weight", "position_embedding.weight"})
    EXPECT_EQ(deviation(name), 0.02);
}

TEST(BuildGraph, AddsABiasToLogits) {
  const ir::Graph graph =
      build_graph(config_from(small_json("ernie4_5_moe", R"("use_bias": true)")),
                  {.num_tokens = 3, .with_logits = true});
  const ir::Node& head = graph.node(graph.value(*graph.find_output("logits")).producer);
  ASSERT_EQ(head.inputs.size(), 3u);
  EXPECT_EQ(head.inputs[1], graph.find_state(intern("embedding.weight"))->before);
  EXPECT_EQ(head.inputs[2], graph.find_state(intern("head.bias"))->before);
  for (const char* name : {"layers.0.attention.q.bias", "layers.0.attention.o.bias",
                           "layers.0.mlp.down.bias", "layers.1.shared_expert.gate.bias"})
    EXPECT_NE(graph.find_state(intern(name)), nullptr) << name;
}

TEST(BuildGraph, ObjectiveIsTheLossWithoutCoefficients) {
  const ir::Graph graph = build_graph(config_from(small_json("mixtral")), {.num_tokens = 3});
  EXPECT_EQ(graph.objective, graph.find_output("loss"));
  EXPECT_TRUE(graph.find_output("aux_loss").has_value());
  EXPECT_FALSE(graph.find_output("z_loss").has_value());
}

TEST(BuildGraph, ScalesTheAuxiliaryLossByItsCoefficient) {
  const ir::Graph graph =
      build_graph(config_from(small_json("mixtral")), {.num_tokens = 3, .balance_coef = 0.125});
  const ir::Node& sum = graph.node(graph.value(*graph.objective).producer);
  ASSERT_EQ(sum.op->name, "add");
  EXPECT_EQ(sum.inputs[0], *graph.find_output("loss"));
  const ir::Node& scaled = graph.node(graph.value(sum.inputs[1]).producer);
  EXPECT_EQ(spec::get_double(scaled.attributes, "factor"), 0.125);
  EXPECT_EQ(scaled.inputs[0], *graph.find_output("aux_loss"));
}

TEST(BuildGraph, BalancesEachLayerOrDocumentOrAllLayersTogether) {
  const ModelConfig config = config_from(small_json("mixtral"));
  const auto counts_of = [&](BalanceLoss kind) {
    const ir::Graph graph =
        build_graph(config, {.num_tokens = 3, .balance_loss = kind, .balance_coef = 0.01});
    ir::verify(graph);
    EXPECT_EQ(graph.objective == graph.find_output("loss"), kind == BalanceLoss::kNone);
    return count_ops(graph);
  };
  const auto layers = static_cast<int>(config.spec.layers.size());
  EXPECT_EQ(counts_of(BalanceLoss::kLayer)["load_balancing_loss"], layers);
  EXPECT_EQ(counts_of(BalanceLoss::kNone)["load_balancing_loss"], layers);
  EXPECT_EQ(counts_of(BalanceLoss::kSequence)["sequence_balance_loss"], layers);
  EXPECT_EQ(counts_of(BalanceLoss::kSequence)["load_balancing_loss"], 0);
  EXPECT_EQ(counts_of(BalanceLoss::kAllLayers)["load_balancing_loss"], 1);
}

TEST(BuildGraph, GivesDocumentsToRoutersThatHaveALoss) {
  const ModelConfig config = config_from(small_json("mixtral"));
  const ir::Graph graph = build_graph(config, {.num_tokens = 3});
  const ir::Node* router = first_node(graph, "router");
  ASSERT_EQ(router->inputs.size(), 2u);
  EXPECT_EQ(text(graph.value(router->inputs[1]).name), "documents");
  const ir::Graph dense = build_graph(config_from(small_json("llama")), {.num_tokens = 3});
  EXPECT_THAT(names_of(dense, dense.batch),
              ElementsAre("tokens", "positions", "key_begin", "key_end", "labels"));
  EXPECT_THAT(names_of(dense, dense.step_inputs), ElementsAre("inverse_tokens"));
}

TEST(BuildGraph, TiedHeadReadsTheEmbedding) {
  const ir::Graph graph =
      build_graph(config_from(small_json("llama", R"("tie_word_embeddings": true)")),
                  {.num_tokens = 3, .with_logits = true});
  const ir::Node& head = graph.node(graph.value(*graph.find_output("logits")).producer);
  EXPECT_EQ(head.inputs[1], graph.find_state(intern("embedding.weight"))->before);
  EXPECT_EQ(graph.find_state(intern("head.weight")), nullptr);
}

// The values that a node reads first, from `value` back to an input or a node of another op.
std::vector<std::string> chain_to(const ir::Graph& graph, ir::ValueId value) {
  std::vector<std::string> ops;
  while (graph.value(value).producer != ir::kNoNode) {
    const ir::Node& node = graph.node(graph.value(value).producer);
    ops.emplace_back(node.op->name);
    if (node.op->name == "linear") break;
    value = node.inputs[0];
  }
  return ops;
}

TEST(BuildGraph, NormalisesAndClipsQueriesBeforeOrAfterTheyRotate) {
  ModelConfig config = config_from(small_json("olmoe", R"("clip_qkv": 0.5)"));
  const auto queries = [&] {
    const ir::Graph graph = build_graph(config, {.num_tokens = 3});
    ir::verify(graph);
    return chain_to(graph, first_node(graph, "attention")->inputs[0]);
  };
  EXPECT_THAT(queries(), ElementsAre("rope", "clamp", "rms_norm", "linear"));
  const ir::Graph graph = build_graph(config, {.num_tokens = 3});
  EXPECT_EQ(count_ops(graph).at("clamp"), 9);
  EXPECT_EQ(spec::get_double(first_node(graph, "clamp")->attributes, "limit"), 0.5);
  Gqa& gqa = std::get<Gqa>(config.spec.layers[0].attention);
  gqa.norms_after_rope = true;
  EXPECT_THAT(queries(), ElementsAre("rms_norm", "rope", "clamp", "linear"));
  gqa.clip_qkv = 0;
  gqa.qk_norm = QkNorm::kHead;
  EXPECT_THAT(queries(), ElementsAre("rms_norm", "rope", "linear"));
}

TEST(BuildGraph, NormsOfQueriesAndKeysHaveTheirWidths) {
  ModelConfig config = config_from(small_json("olmo2"));
  const auto widths = [&] {
    const ir::Graph graph = build_graph(config, {.num_tokens = 3});
    std::vector<std::int64_t> list;
    for (const char* name :
         {"layers.0.attention.q_norm.weight", "layers.0.attention.k_norm.weight"})
      list.push_back(graph.value(graph.find_state(intern(name))->before).type.dim(0));
    return list;
  };
  EXPECT_THAT(widths(), ElementsAre(24, 8));
  std::get<Gqa>(config.spec.layers[0].attention).qk_norm = QkNorm::kHead;
  EXPECT_THAT(widths(), ElementsAre(4, 4));
}

TEST(BuildGraph, RotatesAPartOfAHead) {
  ModelConfig config = config_from(small_json("llama", R"("head_dim": 10)"));
  config.spec.rope.rotary_dim = 4;
  const ir::Graph graph = build_graph(config, {.num_tokens = 3});
  ir::verify(graph);
  EXPECT_EQ(graph.value(first_node(graph, "rope_table")->outputs[0]).type.dim(1), 4);
  EXPECT_EQ(spec::get_int(first_node(graph, "rope")->attributes, "head_dim"), 10);
}

TEST(BuildGraph, PutsNormsBeforeOrAfterBlocksOrBoth) {
  ModelConfig config = config_from(small_json("llama", R"("num_hidden_layers": 1)"));
  const auto norms = [&](NormPlacement placement) {
    config.spec.layers[0].norms = placement;
    const ir::Graph graph = build_graph(config, {.num_tokens = 3});
    ir::verify(graph);
    std::vector<std::string> names;
    for (const Parameter& parameter : declare(config.spec).parameters)
      if (parameter.shape.size() == 1 && parameter.layer == 0)
        names.push_back(parameter.file.tensor);
    return names;
  };
  EXPECT_THAT(norms(NormPlacement::kBefore),
              ElementsAre("input_layernorm.weight", "post_attention_layernorm.weight"));
  EXPECT_THAT(norms(NormPlacement::kAfter),
              ElementsAre("post_attention_layernorm.weight", "post_feedforward_layernorm.weight"));
  EXPECT_THAT(norms(NormPlacement::kBoth),
              ElementsAre("input_layernorm.weight", "post_attention_layernorm.weight",
                          "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"));
  config.spec.layers[0].norms = NormPlacement::kAfter;
  const ir::Graph graph = build_graph(config, {.num_tokens = 3});
  const ir::Node& sum = *first_node(graph, "add");
  EXPECT_EQ(graph.node(graph.value(sum.inputs[0]).producer).op->name, "embedding");
  EXPECT_THAT(chain_to(graph, sum.inputs[1]), ElementsAre("rms_norm", "linear"));
}

TEST(BuildGraph, MultipliesWhereTheSpecSays) {
  const auto factors = [](const std::string& members) {
    const ir::Graph graph = build_graph(config_from(small_json("granitemoe", members)),
                                        {.num_tokens = 3, .with_loss = false, .with_logits = true});
    std::vector<double> list;
    for (const ir::Node& node : graph.nodes)
      if (node.op->name == "scale") list.push_back(spec::get_double(node.attributes, "factor"));
    return list;
  };
  EXPECT_THAT(factors(R"("num_hidden_layers": 1)"), ElementsAre());
  EXPECT_THAT(factors(R"("num_hidden_layers": 1, "embedding_multiplier": 12,
                         "residual_multiplier": 0.25, "logits_scaling": 8)"),
              ElementsAre(12.0, 0.25, 0.25, 0.125));
}

TEST(BuildGraph, ScalesScoresByTheSpecOrByTheHead) {
  const auto scale = [](const std::string& json) {
    const ir::Graph graph = build_graph(config_from(json), {.num_tokens = 3});
    return spec::get_double(first_node(graph, "attention")->attributes, "scale");
  };
  EXPECT_EQ(scale(small_json("llama")), 0.5);
  EXPECT_EQ(scale(small_json("granitemoe")), 1.0);
  EXPECT_EQ(scale(small_json("granitemoe", R"("attention_multiplier": 0.125)")), 0.125);
}

// The last product has none of its own: see `expert_bias`.
TEST(BuildGraph, AddsTheBiasesOfTheLastProductBehindTheCombine) {
  const ir::Graph graph = build_graph(config_from(small_json("gpt_oss")), {.num_tokens = 3});
  std::vector<std::size_t> inputs;
  for (const ir::Node& node : graph.nodes)
    if (node.op->name == "grouped_linear" && node.tag.layer == 0)
      inputs.push_back(node.inputs.size());
  EXPECT_THAT(inputs, ElementsAre(4, 4, 3));
  const ir::Node* bias = first_node(graph, "expert_bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(graph.node(graph.value(bias->inputs[0]).producer).op->name, "unpermute");
  EXPECT_EQ(text(graph.value(bias->inputs[1]).name), "layers.0.experts.down.bias");
  const ir::Node* router = first_node(graph, "router");
  EXPECT_EQ(bias->inputs[2], router->outputs[0]);
  EXPECT_EQ(bias->inputs[3], router->outputs[1]);
  const ir::Node* activation = first_node(graph, "activation");
  EXPECT_EQ(spec::activation_of(activation->attributes),
            (spec::Activation{.kind = spec::ActivationKind::kSwigluClamped}));
}

TEST(BuildGraph, AddsASharedExpertToWhatTheExpertsGive) {
  const ir::Graph graph =
      build_graph(config_from(small_json("granitemoeshared")), {.num_tokens = 3});
  const auto unpermute = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return node.op->name == "unpermute";
  });
  const auto sum = std::find_if(unpermute, graph.nodes.end(),
                                [](const ir::Node& node) { return node.op->name == "add"; });
  ASSERT_NE(sum, graph.nodes.end());
  EXPECT_EQ(sum->inputs[0], unpermute->outputs[0]);
  EXPECT_THAT(chain_to(graph, sum->inputs[1]), ElementsAre("linear"));
  const ModelConfig none =
      config_from(small_json("granitemoeshared", R"("shared_intermediate_size": 0)"));
  EXPECT_FALSE(first_moe(none.spec)->shared.has_value());
}

TEST(BuildGraph, GivesTheWindowToItsLayersOnly) {
  const ir::Graph graph = build_graph(
      config_from(small_json("qwen3", R"("use_sliding_window": true, "sliding_window": 2,
                                         "max_window_layers": 2)")),
      {.num_tokens = 3});
  std::vector<std::int64_t> windows;
  for (const ir::Node& node : graph.nodes)
    if (node.op->name == "attention") windows.push_back(spec::get_int(node.attributes, "window"));
  EXPECT_THAT(windows, ElementsAre(0, 0, 2));
}

TEST(BuildGraph, GivesSinksToTheLayersThatHaveThem) {
  ModelConfig config = config_from(small_json("llama"));
  std::get<Gqa>(config.spec.layers[1].attention).has_sinks = true;
  for (const std::int64_t cache_capacity : {0, 9}) {
    const ir::Graph graph = build_graph(config, {.num_tokens = 3,
                                                 .with_loss = cache_capacity == 0,
                                                 .with_logits = true,
                                                 .cache_capacity = cache_capacity});
    ir::verify(graph);
    const ir::State* sinks = graph.find_state(intern("layers.1.attention.sinks"));
    ASSERT_NE(sinks, nullptr);
    EXPECT_EQ(sinks->role, ir::StateRole::kParameter);
    EXPECT_EQ(graph.value(sinks->before).type, tensor_type(DType::kFloat32, {6}));
    EXPECT_EQ(sinks->init.rule, spec::Init::Rule::kNormal);
    EXPECT_EQ(graph.find_state(intern("layers.0.attention.sinks")), nullptr);
    std::vector<std::size_t> counts;
    for (const ir::Node& node : graph.nodes)
      if (node.op->name == "attention") counts.push_back(node.inputs.size());
    EXPECT_THAT(counts, ElementsAre(5, 6, 5));
  }
  const std::deque<Parameter> list = declare(config.spec).parameters;
  const auto found = std::find_if(list.begin(), list.end(), [](const Parameter& parameter) {
    return parameter.name() == "layers.1.attention.sinks";
  });
  ASSERT_NE(found, list.end());
  EXPECT_EQ(found->file.tensor, "self_attn.sinks");
}

TEST(BuildGraph, TagsLayersAndSegments) {
  const ir::Graph graph = build_graph(config_from(small_json("mixtral")), {.num_tokens = 3});
  const std::map<std::string, std::string> segments{
      {"embedding", "embedding"},     {"attention", "attention"}, {"router", "router"},
      {"route_sort", "dispatch"},     {"permute", "dispatch"},    {"grouped_linear", "experts"},
      {"unpermute", "combine"},       {"cross_entropy", "loss"},  {"activation", "experts"},
      {"load_balancing_loss", "loss"}};
  for (const auto& [op, segment] : segments) {
    const ir::Node* node = first_node(graph, op);
    ASSERT_NE(node, nullptr) << op;
    EXPECT_EQ(text(node->tag.segment), segment) << op;
    EXPECT_EQ(node->tag.layer >= 0, segment != "embedding" && segment != "loss") << op;
  }
}

TEST(BuildGraph, DecodesThroughCachesThatAreWrittenBeforeTheyAreRead) {
  const ir::Graph graph =
      build_graph(config_from(small_json("qwen3_moe")),
                  {.num_tokens = 2, .with_loss = false, .with_logits = true, .cache_capacity = 9});
  EXPECT_THAT(names_of(graph, graph.batch),
              ElementsAre("tokens", "positions", "key_begin", "key_end", "cache_places"));
  EXPECT_TRUE(graph.step_inputs.empty());
  int num_caches = 0;
  for (const ir::State& state : graph.states) {
    if (state.kind() != ir::StateKind::kCache) continue;
    ++num_caches;
    EXPECT_NE(state.before, state.after);
    EXPECT_EQ(graph.value(state.before).type, tensor_type(DType::kFloat32, {9, 8}));
  }
  EXPECT_EQ(num_caches, 6);
  const ir::State* cache = graph.find_state(intern("layers.0.attention.k_cache"));
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(first_node(graph, "attention")->inputs[1], cache->after);
}

TEST(BuildGraph, GivesTheLogProbabilitiesOfLabels) {
  const ir::Graph graph =
      build_graph(config_from(small_json("qwen3_moe")),
                  {.num_tokens = 2, .with_loss = false, .with_log_probabilities = true});
  EXPECT_THAT(names_of(graph, graph.batch),
              ElementsAre("tokens", "positions", "key_begin", "key_end", "labels"));
  EXPECT_THAT(names_of(graph, graph.outputs), ElementsAre("log_probabilities", "margins"));
}

TEST(BuildGraph, IsTheSameTwice) {
  const ModelConfig config = config_from(small_json("qwen3_moe"));
  EXPECT_EQ(ir::hash(build_graph(config, {.num_tokens = 3})),
            ir::hash(build_graph(config, {.num_tokens = 3})));
}

TEST(BuildGraph, RefusesOptionsThatMakeNoGraph) {
  const ModelConfig config = config_from(small_json("llama"));
  const auto message = [&](const BuildOptions& options) {
    return message_of<InvalidArgument>([&] { build_graph(config, options); });
  };
  EXPECT_THAT(message({.num_tokens = 0}), ::testing::HasSubstr("tokens a micro-batch, got 0"));
  EXPECT_THAT(message({.num_tokens = 1, .with_loss = false}), ::testing::HasSubstr("got neither"));
  EXPECT_THAT(message({.num_tokens = 1, .with_log_probabilities = true}),
              ::testing::HasSubstr("with_loss false"));
  EXPECT_THAT(
      message({.num_tokens = 4, .with_loss = false, .with_logits = true, .cache_capacity = 3}),
      ::testing::HasSubstr("a cache of at least 4 rows, got 3"));
}

}  // namespace
}  // namespace anabatic::model
