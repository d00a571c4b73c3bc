// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters: which weights get one, what the graph becomes, and files as PEFT has them.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "io/safetensors_writer.h"
#include "ir/op_schema.h"
#include "model/family.h"
#include "model/float_conversion.h"
#include "model/lora/merged_weights.h"
#include "model/lora/peft_files.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names_of(const Adapter& adapter) {
  std::vector<std::string> names;
  for (const AdapterGroup& group : adapter.groups) names.push_back(group.name);
  return names;
}

std::vector<std::string> all_families() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->model_type);
  return names;
}

ModelConfig config_of(const std::string& model_type) {
  return config_from(small_json(model_type, R"("num_hidden_layers": 2)"));
}

// Everything that can have an adapter here.
AdapterRequest all_of(const ModelConfig& config, std::int64_t rank = 3) {
  AdapterRequest request{.targets = {"all", "embedding", "head"}, .rank = rank, .alpha = 6};
  if (num_experts(config.spec) > 0) request.targets.emplace_back("router");
  return request;
}

void fill(AdapterValues& values, std::uint64_t seed) {
  const StateWriter write = values.writer();
  std::uint64_t draw = 0;
  const auto fill_state = [&](const std::string& state) {
    std::vector<float> drawn(values.of(state).size());
    for (float& value : drawn) value = static_cast<float>(random_normal(seed, 1, draw++));
    write(state, 0, drawn);
  };
  for (const AdapterGroup& group : values.adapter().groups) {
    fill_state(group.a());
    for (const AdapterPart& part : group.parts) fill_state(part.b());
  }
}

// W of every parameter with the adapter merged into zeroes.
States changes(const ModelConfig& config, const AdapterValues& values) {
  States states;
  const StateReader read =
      merged_reader([](std::string_view, std::int64_t,
                       std::span<float> zeroes) { std::ranges::fill(zeroes, 0.0f); },
                    values);
  for (const Parameter& parameter : declare(config.spec, false).parameters) {
    std::vector<float>& all = states[parameter.name()];
    all.resize(static_cast<std::size_t>(parameter.num_elements()));
    read(parameter.name(), 0, all);
  }
  return states;
}

AdapterValues load(const PeftFiles& files) {
  AdapterValues values(files.adapter());
  files.load(values.writer());
  return values;
}

Json adapter_config(const std::filesystem::path& directory) {
  return parse_json(read_file(directory / kAdapterConfig));
}

TEST(Lora, WordsChooseWeightsByWhatTheyAreOf) {
  const ModelConfig config = config_of("deepseek_v3");
  const auto chosen = [&](const char* target) {
    return names_of(choose_adapter(config, {.targets = {target}}));
  };
  // Products of one tensor share A: those of kv_a_proj_with_mqa, and those of kv_b_proj.
  EXPECT_THAT(chosen("attention"),
              ElementsAre("layers.0.attention.q_a", "layers.0.attention.q_b",
                          "layers.0.attention.kv_a_k_rope", "layers.0.attention.k_b_v_b",
                          "layers.0.attention.o", "layers.1.attention.q_a",
                          "layers.1.attention.q_b", "layers.1.attention.kv_a_k_rope",
                          "layers.1.attention.k_b_v_b", "layers.1.attention.o"));
  EXPECT_THAT(chosen("mlp"),
              ElementsAre("layers.0.mlp.gate", "layers.0.mlp.up", "layers.0.mlp.down"));
  EXPECT_THAT(chosen("experts"), ElementsAre("layers.1.experts.gate_up", "layers.1.experts.down"));
  EXPECT_THAT(chosen("shared"),
              ElementsAre("layers.1.shared_expert.gate", "layers.1.shared_expert.up",
                          "layers.1.shared_expert.down"));
  EXPECT_THAT(chosen("router"), ElementsAre("layers.1.router"));
  EXPECT_THAT(chosen("head"), ElementsAre("head"));
  EXPECT_EQ(chosen("all").size(), 10u + 3 + 2 + 3);
  EXPECT_THAT(chosen("1\\.attention\\.o"), ElementsAre("layers.1.attention.o"));
  EXPECT_THAT(names_of(choose_adapter(config, {.targets = {"experts"}, .shares_gate_up = false})),
              ElementsAre("layers.1.experts.gate", "layers.1.experts.up", "layers.1.experts.down"));
}

TEST(Lora, ShapesAndScaleFollowRankAndAlpha) {
  const ModelConfig config = config_of("mixtral");
  const Adapter adapter = choose_adapter(config, {.targets = {"experts"}, .rank = 4, .alpha = 8});
  const AdapterGroup& group = adapter.groups.front();
  EXPECT_EQ(group.scale(), 2);
  EXPECT_THAT(group.a_shape(), ElementsAre(4, 4, 12));
  EXPECT_THAT(group.b_shape(group.parts[1]), ElementsAre(4, 10, 4));
  EXPECT_EQ(group.num_elements(), 4 * 4 * (12 + 10 + 10));
  const Adapter other = choose_adapter(
      config, {.targets = {"experts"}, .rank = 4, .alpha = 8, .divides_by_root = true});
  EXPECT_EQ(other.groups.front().scale(), 4);
}

TEST(Lora, TargetsThatMeetNothingSayWhatThereIs) {
  const ModelConfig config = config_of("mixtral");
  const auto refusal = [](const ModelConfig& of, const char* target) {
    return message_of<Error>([&] { choose_adapter(of, {.targets = {target}}); });
  };
  EXPECT_THAT(refusal(config, "mlp"),
              AllOf(HasSubstr("'mlp' meets no weight of this mixtral"),
                    HasSubstr("attention (8 weights, such as layers.0.attention.q.weight)"),
                    HasSubstr("experts (6 weights, such as layers.0.experts.gate.weight)")));
  EXPECT_THAT(refusal(config, "(["), HasSubstr("lora.targets: the regular expression `([` does"));
  EXPECT_THAT(refusal(config, "experts\\.gate"),
              HasSubstr("expected all weights of model.layers.0.mlp.experts.gate_up_proj, which is "
                        "one tensor in transformers, or none; layers.0.experts.up.weight"));
}

TEST(Lora, ATableHasARowOfAForEachOfItsOwn) {
  const ModelConfig config = config_from(small_json("llama", R"("pad_token_id": 3)"));
  const Adapter adapter = choose_adapter(config, {.targets = {"embedding"}, .rank = 2, .alpha = 4});
  ASSERT_THAT(names_of(adapter), ElementsAre("embedding"));
  const AdapterGroup& group = adapter.groups.front();
  EXPECT_THAT(group.a_shape(), ElementsAre(11, 2));
  EXPECT_THAT(group.b_shape(group.parts[0]), ElementsAre(12, 2));
  EXPECT_EQ(group.num_elements(), 2 * (11 + 12));
  EXPECT_EQ(group.num_multiplied(), 2 * 12);
  ir::Graph graph = build_graph(config, {.num_tokens = 8});
  const std::size_t before = graph.nodes.size();
  add_adapter(graph, adapter);
  ir::verify(graph);
  EXPECT_EQ(graph.nodes.size(), before + 4);  // lookup in A, scale, B, sum
  const ir::State *a = graph.find_state(intern("embedding.lora_A")),
                  *b = graph.find_state(intern("embedding.lora_B"));
  EXPECT_EQ(a->init.rule, spec::Init::Rule::kZeros);
  EXPECT_EQ(b->init.rule, spec::Init::Rule::kNormal);
  EXPECT_EQ(b->init.deviation, 1);
  const auto lookup = std::ranges::find_if(graph.nodes, [&](const ir::Node& node) {
    return std::ranges::find(node.inputs, a->before) != node.inputs.end();
  });
  ASSERT_NE(lookup, graph.nodes.end());
  EXPECT_EQ(lookup->op->name, "embedding");
  EXPECT_EQ(spec::get_int(lookup->attributes, "padding"), 3);
}

TEST(Lora, AHeadThatIsTheEmbeddingHasAnAdapterOfItsOwn) {
  const ModelConfig config = config_from(small_json("llama", R"("tie_word_embeddings": true)"));
  for (const bool with_embedding : {false, true}) {
    AdapterRequest request{.targets = {"head"}, .rank = 2, .alpha = 2};
    if (with_embedding) request.targets.emplace_back("embedding");
    const Adapter adapter = choose_adapter(config, request);
    ir::Graph graph = build_graph(config, {.num_tokens = 8});
    const std::size_t before = graph.nodes.size();
    add_adapter(graph, adapter);
    ir::verify(graph);
    EXPECT_EQ(graph.nodes.size(), before + (with_embedding ? 6 : 3));
    EXPECT_NE(graph.find_state(intern("head.lora_A")), nullptr);
    EXPECT_THAT(why_not_merged(config, adapter), HasSubstr("are one tensor"));
    EXPECT_THAT(coverage_to_string(config, adapter), HasSubstr("cannot be merged: the embedding"));
  }
  EXPECT_EQ(why_not_merged(config, choose_adapter(config, {.targets = {"all"}})), "");
  const ModelConfig untied = config_of("llama");
  EXPECT_EQ(why_not_merged(untied, choose_adapter(untied, all_of(untied))), "");
}

TEST(Lora, PeftHasTheTransposedAOfATable) {
  const ModelConfig config = config_of("llama");
  AdapterValues values(choose_adapter(config, {.targets = {"embedding"}, .rank = 2, .alpha = 6}));
  fill(values, 3);
  const io::TempDirectory folder;
  write_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
  const auto files = io::SafetensorsDirectory::open(folder.path(), kAdapterStem);
  const std::string stem = "base_model.model.model.embed_tokens.lora_embedding_";
  const io::TensorEntry *a = files.find(stem + "A"), *b = files.find(stem + "B");
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(a->shape, ElementsAre(2, 11));
  EXPECT_THAT(b->shape, ElementsAre(12, 2));
  const auto* of_a = reinterpret_cast<const float*>(a->data.data());
  const auto* of_b = reinterpret_cast<const float*>(b->data.data());
  const std::vector<float> change = changes(config, values).at("embedding.weight");
  for (std::size_t t = 0; t < 11; ++t)
    for (std::size_t h = 0; h < 12; ++h) {
      const double want =
          3 * (double{of_b[h * 2]} * of_a[t] + double{of_b[h * 2 + 1]} * of_a[11 + t]);
      EXPECT_EQ(change[t * 12 + h], static_cast<float>(want));
    }
}

// PEFT adds the weights below adapters of an embedding or head to the file.
TEST(Lora, WeightsInTheFileHaveToBeThoseOfTheModel) {
  const ModelConfig config = config_from(small_json("llama", R"("tie_word_embeddings": true)"));
  const States states = random_states(config, 4);
  AdapterValues values(choose_adapter(config, {.targets = {"head"}, .rank = 2}));
  fill(values, 3);
  const auto refusal = [&](DType dtype, std::vector<std::int64_t> shape, float change) {
    const io::TempDirectory folder;
    write_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
    std::vector<io::TensorInfo> infos;
    const std::string stem = "base_model.model.lm_head.";
    infos.push_back({stem + "lora_A.weight", DType::kFloat32, {2, 12}});
    infos.push_back({stem + "lora_B.weight", DType::kFloat32, {11, 2}});
    infos.push_back({stem + "base_layer.weight", dtype, std::move(shape)});
    auto writer =
        io::SafetensorsWriter::single_file(folder.path() / "adapter_model.safetensors", infos);
    writer.write(infos[0].name, std::as_bytes(values.of("head.lora_A")));
    writer.write(infos[1].name, std::as_bytes(values.of("head.lora_B")));
    std::vector<float> weight = states.at("embedding.weight");
    weight[5] += change;
    std::vector<std::byte> bytes(weight.size() * static_cast<std::size_t>(size_bytes(dtype)));
    from_floats(dtype, weight, bytes);
    writer.write(infos[2].name, bytes);
    writer.finish();
    return message_of<InvalidArgument>([&] {
      const PeftFiles files(config, folder.path());
      EXPECT_TRUE(files.holds_weights());
      files.require_equal_weights(config, values_of(states));
    });
  };
  EXPECT_EQ(refusal(DType::kFloat32, {11, 12}, 0), "");
  EXPECT_EQ(refusal(DType::kBFloat16, {11, 12}, 0), "");
  EXPECT_THAT(refusal(DType::kFloat32, {11, 12}, 1e-3f),
              HasSubstr("base_layer.weight: expected embedding.weight of this llama, found another "
                        "value at element 5"));
  EXPECT_THAT(refusal(DType::kBFloat16, {11, 12}, 1), HasSubstr("at element 5"));
  EXPECT_THAT(refusal(DType::kFloat32, {12, 11}, 0), HasSubstr("expected shape [11,12]"));
}

TEST(Lora, TheGraphGetsSmallProductsAndTrainsNothingElse) {
  const ModelConfig config = config_of("mixtral");
  ir::Graph graph = build_graph(config, {.num_tokens = 8});
  const std::size_t before = graph.nodes.size();
  add_adapter(graph, choose_adapter(config, {.targets = {"experts"}, .rank = 2, .alpha = 2}));
  ir::verify(graph);
  // Gate and up share A, so a layer has two A, three B and three sums; the scale is 1.
  EXPECT_EQ(graph.nodes.size(), before + 2 * (2 + 3 + 3));
  for (const ir::State& state : graph.states)
    EXPECT_EQ(state.is_trainable, text(state.name).find(".lora_") != std::string_view::npos)
        << text(state.name);
  const ir::State* a = graph.find_state(intern("layers.0.experts.gate_up.lora_A"));
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->init.rule, spec::Init::Rule::kUniform);
  EXPECT_EQ(a->init.deviation, 1 / std::sqrt(12.0));
  std::vector<float> drawn(96);
  initialize(*a, graph.value(a->before).type, 0, drawn, 3);
  const auto [low, high] = std::ranges::minmax(drawn);
  EXPECT_LT(low, -0.5 * a->init.deviation);
  EXPECT_GT(high, 0.5 * a->init.deviation);
  EXPECT_LE(std::max(-low, high), static_cast<float>(a->init.deviation));
}

TEST(Lora, FilesOfEveryFamilyGiveBackWhatWasWritten) {
  for (const std::string& family : all_families())
    for (const bool shares : {true, false}) {
      const ModelConfig config = config_of(family);
      AdapterRequest request = all_of(config);
      request.shares_gate_up = shares;
      AdapterValues values(choose_adapter(config, request));
      fill(values, 7);
      const io::TempDirectory folder;
      write_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
      const PeftFiles files(config, folder.path(), shares ? GateUp::kTogether : GateUp::kApart);
      EXPECT_THAT(files.left_out(), IsEmpty()) << family;
      const AdapterValues read = load(files);
      EXPECT_EQ(names_of(read.adapter()), names_of(values.adapter())) << family;
      for (const AdapterGroup& group : values.adapter().groups) {
        EXPECT_EQ(read.adapter().find(group.parts[0].parameter)->scale(), group.scale()) << family;
        EXPECT_TRUE(std::ranges::equal(read.of(group.a()), values.of(group.a()))) << group.name;
        for (const AdapterPart& part : group.parts)
          EXPECT_TRUE(std::ranges::equal(read.of(part.b()), values.of(part.b())))
              << family << " " << part.b();
      }
      if (shares && num_experts(config.spec) > 0) {
        EXPECT_THAT(
            message_of<InvalidArgument>([&] { PeftFiles(config, folder.path(), GateUp::kApart); }),
            HasSubstr("lora.share_gate_up: expected true"))
            << family;
        EXPECT_EQ(names_of(PeftFiles(config, folder.path(), GateUp::kApartIfPossible).adapter()),
                  names_of(values.adapter()));
      }
      // Gate and up that are read as one pair change the weights alike.
      if (shares) continue;
      const AdapterValues whole = load(PeftFiles(config, folder.path()));
      EXPECT_EQ(changes(config, whole), changes(config, values)) << family;
    }
}

TEST(Lora, AStackHasExpertsFastestInTheColumnsOfB) {
  const ModelConfig config = config_of("mixtral");
  AdapterValues values(choose_adapter(config, {.targets = {"experts"}, .rank = 2, .alpha = 4}));
  fill(values, 3);
  const io::TempDirectory folder;
  write_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
  const auto files = io::SafetensorsDirectory::open(folder.path(), kAdapterStem);
  const std::string stem = "base_model.model.model.layers.1.mlp.experts.";
  const io::TensorEntry* b = files.find(stem + "base_layer.lora_B.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(b->shape, ElementsAre(20, 8));
  const auto* elements = reinterpret_cast<const float*>(b->data.data());
  const auto up = values.of("layers.1.experts.up.lora_B");
  // Row 3 of up is row 13 of the file; rank 1 of expert 2 is column 1 · 4 + 2.
  EXPECT_EQ(elements[13 * 8 + 6], up[static_cast<std::size_t>((2 * 10 + 3) * 2 + 1)]);
  const io::TensorEntry* a = files.find(stem + "lora_A.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_THAT(a->shape, ElementsAre(8, 10));
  const Json json = adapter_config(folder.path());
  EXPECT_EQ(json["target_parameters"], Json({"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
  EXPECT_EQ(json["target_modules"], Json::array());
  EXPECT_EQ(json["r"], 2);
  EXPECT_EQ(json["lora_alpha"], 4);
}

TEST(Lora, OwnDownProjectionsDoubleTheRankOfAStack) {
  const ModelConfig config = config_of("mixtral");
  AdapterRequest request{
      .targets = {"attention", "experts"}, .rank = 2, .alpha = 4, .shares_gate_up = false};
  for (const bool by_root : {false, true}) {
    request.divides_by_root = by_root;
    AdapterValues values(choose_adapter(config, request));
    fill(values, 3);
    const io::TempDirectory folder;
    write_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
    const Json json = adapter_config(folder.path());
    const char* key = ".*\\.mlp\\.experts\\.gate_up_proj";
    EXPECT_EQ(json["r"], 2);
    EXPECT_EQ(json["rank_pattern"], Json({{key, 4}}));
    EXPECT_EQ(json["alpha_pattern"][key].get<double>(), by_root ? 4 * std::sqrt(2.0) : 8);
    EXPECT_EQ(json["target_modules"], Json({"self_attn.k_proj", "self_attn.o_proj",
                                            "self_attn.q_proj", "self_attn.v_proj"}));
  }
}

TEST(Lora, APairForEachExpertIsReadAndWritten) {
  for (const char* family : {"mixtral", "qwen2_moe", "deepseek_v3", "minimax_m2"})
    for (const bool shares : {true, false}) {
      const ModelConfig config = config_of(family);
      AdapterValues values(choose_adapter(
          config, {.targets = {"attention", "experts"}, .rank = 2, .shares_gate_up = shares}));
      fill(values, 9);
      const io::TempDirectory folder;
      write_numbered_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
      const auto files = io::SafetensorsDirectory::open(folder.path(), kAdapterStem);
      const bool is_mixtral = std::string_view(family) == "mixtral";
      const char* name = is_mixtral
                             ? "base_model.model.model.layers.1.block_sparse_moe.experts.3.w1.lora_"
                               "A.weight"
                             : "base_model.model.model.layers.1.mlp.experts.3.gate_proj.lora_A."
                               "weight";
      if (std::string_view(family) != "minimax_m2") {
        EXPECT_NE(files.find(name), nullptr) << family;
      }
      EXPECT_EQ(changes(config, load(PeftFiles(config, folder.path()))), changes(config, values))
          << family;
    }
  // A stack of one expert is one pair too.
  const ModelConfig one =
      config_from(small_json("mixtral", R"("num_local_experts": 1, "num_experts_per_tok": 1)"));
  AdapterValues of_one(choose_adapter(one, {.targets = {"experts"}, .rank = 2}));
  fill(of_one, 9);
  const io::TempDirectory folder_of_one;
  write_numbered_peft_files(one, of_one.adapter(), of_one.reader(), folder_of_one.path(), "base");
  EXPECT_EQ(changes(one, load(PeftFiles(one, folder_of_one.path()))), changes(one, of_one));

  const ModelConfig config = config_of("deepseek_v3");
  AdapterValues values(choose_adapter(config, {.targets = {"all"}}));
  const io::TempDirectory folder;
  EXPECT_THAT(message_of<Unsupported>([&] {
                write_numbered_peft_files(config, values.adapter(), values.reader(), folder.path(),
                                          "base");
              }),
              HasSubstr("PEFT 0.19 and later would leave out"));
}

// A of a stack [E, out, in] was [rank · E, out] before PEFT 0.19, and B [in, rank · E].
TEST(Lora, StacksOfOlderPeftAreToldByTheirShape) {
  const ModelConfig config = config_of("mixtral");
  const io::TempDirectory folder;
  const std::int64_t experts = 4, rank = 2, out = 12, in = 10;  // of down
  std::vector<float> a(static_cast<std::size_t>(rank * experts * out)),
      b(static_cast<std::size_t>(in * rank * experts));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(random_normal(1, 1, i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(random_normal(1, 2, i));
  std::vector<io::TensorInfo> infos;
  for (const char* layer : {"0", "1"}) {
    const std::string stem = fmt::format("base_model.model.model.layers.{}.mlp.experts.", layer);
    infos.push_back({stem + "lora_A.weight", DType::kFloat32, {rank * experts, out}});
    infos.push_back({stem + "lora_B.weight", DType::kFloat32, {in, rank * experts}});
  }
  auto writer =
      io::SafetensorsWriter::single_file(folder.path() / "adapter_model.safetensors", infos);
  for (const io::TensorInfo& info : infos)
    writer.write(info.name, std::as_bytes(std::span<const float>(
                                info.name.find("lora_A") != std::string::npos ? a : b)));
  writer.finish();
  io::write_text(folder / kAdapterConfig,
                 R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "peft_version": "0.18.0",
                     "target_parameters": ["mlp.experts.down_proj"], "target_modules": []})");
  const AdapterValues values = load(PeftFiles(config, folder.path()));
  const States got = changes(config, values);
  const std::vector<float>& down = got.at("layers.1.experts.down.weight");
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) {
        double want = 0;
        for (std::int64_t j = 0; j < rank; ++j)
          want += static_cast<double>(
                      b[static_cast<std::size_t>(i * rank * experts + j * experts + e)]) *
                  a[static_cast<std::size_t>((e * rank + j) * out + o)];
        EXPECT_EQ(down[static_cast<std::size_t>((e * out + o) * in + i)], static_cast<float>(want));
      }
}

// Writes an adapter, changes its config, and returns what reading it says.
std::string refusal_of(const char* key, const Json& value, const char* family = "mixtral") {
  const ModelConfig config = config_of(family);
  AdapterValues values(choose_adapter(config, {.targets = {"attention", "experts"}, .rank = 2}));
  const io::TempDirectory folder;
  write_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
  Json json = adapter_config(folder.path());
  json[key] = value;
  io::write_text(folder / kAdapterConfig, dump_json(json));
  return message_of<Error>([&] { (void)PeftFiles(config, folder.path()); });
}

TEST(Lora, WhatPeftWouldDoAndWeDoNotIsRefusedByName) {
  EXPECT_THAT(refusal_of("use_dora", true), HasSubstr("use_dora: expected none, got true"));
  EXPECT_THAT(refusal_of("bias", "lora_only"), HasSubstr("bias"));
  EXPECT_THAT(refusal_of("modules_to_save", Json({"lm_head"})), HasSubstr("modules_to_save"));
  EXPECT_THAT(refusal_of("lora_bias", true), HasSubstr("lora_bias"));
  EXPECT_THAT(refusal_of("ensure_weight_tying", true),
              HasSubstr("ensure_weight_tying: expected none, got true"));
  EXPECT_THAT(refusal_of("layer_replication", Json({{0, 1}})), HasSubstr("layer_replication"));
  EXPECT_THAT(refusal_of("trainable_token_indices", Json({3})),
              HasSubstr("trainable_token_indices"));
  EXPECT_THAT(refusal_of("init_lora_weights", "pissa"), HasSubstr("pissa"));
  EXPECT_THAT(refusal_of("a_later_invention", 1), HasSubstr("a_later_invention"));
  EXPECT_THAT(refusal_of("peft_type", "LOHA"), HasSubstr("peft_type"));
  EXPECT_THAT(refusal_of("r", 0), HasSubstr("r"));
  // Without effect on a loaded adapter.
  EXPECT_EQ(refusal_of("lora_dropout", 0.05), "");
  EXPECT_EQ(refusal_of("fan_in_fan_out", true), "");
}

TEST(Lora, RanksPatternsAndTargetsHaveToMeetTheTensors) {
  EXPECT_THAT(refusal_of("r", 3),
              AllOf(HasSubstr("expected numbers [3,12] by adapter_config.json of "
                              "model.layers.0.self_attn.q_proj, found F32 [2,12]"),
                    HasSubstr("and 14 more")));
  EXPECT_THAT(refusal_of("rank_pattern", Json({{"q_proj", 4}})), HasSubstr("q_proj"));
  EXPECT_THAT(refusal_of("rank_pattern", Json({{"(", 4}})), HasSubstr("the regular expression"));
  EXPECT_THAT(refusal_of("target_modules", Json({"q_proj", "lm_head"})),
              HasSubstr("targets lm_head, but no tensor of the file is of it"));
  EXPECT_EQ(refusal_of("rank_pattern", Json({{"nothing_of_this", 4}})), "");
}

TEST(Lora, ModulesThatTheNamesMeanAndTheFileLacksAreTold) {
  const ModelConfig config = config_of("deepseek_v3");
  AdapterValues values(choose_adapter(config, {.targets = {"attention", "experts"}, .rank = 2}));
  const io::TempDirectory folder;
  write_numbered_peft_files(config, values.adapter(), values.reader(), folder.path(), "base");
  const PeftFiles files(config, folder.path());
  // gate_proj is also that of the dense layer and of the shared expert.
  EXPECT_THAT(
      files.left_out(),
      ElementsAre("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                  "model.layers.0.mlp.down_proj", "model.layers.1.mlp.shared_experts.gate_proj",
                  "model.layers.1.mlp.shared_experts.up_proj",
                  "model.layers.1.mlp.shared_experts.down_proj"));
}

TEST(Lora, AnAdapterOfAnotherModelIsRefused) {
  const ModelConfig mixtral = config_of("mixtral"), llama = config_of("llama");
  AdapterValues values(choose_adapter(mixtral, {.targets = {"attention", "experts"}, .rank = 2}));
  const io::TempDirectory folder;
  write_peft_files(mixtral, values.adapter(), values.reader(), folder.path(), "base");
  EXPECT_THAT(message_of<InvalidArgument>([&] { PeftFiles(llama, folder.path()); }),
              HasSubstr("no weight of this llama has an adapter of that name"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { PeftFiles(llama, folder / "nothing"); }),
              HasSubstr("expected a directory with adapter_config.json"));
}

TEST(Lora, CoverageIsATable) {
  const ModelConfig config = config_of("deepseek_v3");
  const std::string text = coverage_to_string(
      config, choose_adapter(config, {.targets = {"experts", "attention"}, .rank = 2}));
  EXPECT_THAT(text, AllOf(HasSubstr("experts          3       3"), HasSubstr("shared           0"),
                          HasSubstr("without an adapter: 3 of 3 mlp, 3 of 3 shared, 1 of 1 router, "
                                    "1 of 1 embedding, 1 of 1 head")));
}

}  // namespace
}  // namespace anabatic::model
